"""Random indexes of numbers, slices, new axes, tensors and masks against PyTorch: what is read, its
gradient, and what is written."""

import math
import random
from typing import Any

import numpy as np
import pytest
import torch

import stack.framework as ht
from tests.draw import stream

CASES = 60


def drawn(rng: random.Random) -> tuple[tuple[int, ...], list[Any]]:
    """A shape and an index of it, with arrays in the place of tensors."""
    shape = tuple(rng.randint(2, 5) for _ in range(rng.randint(1, 4)))
    among = rng.choice([(2,), (3,), (2, 3), ()])
    items: list[Any] = []
    axis, named = 0, False
    while axis < len(shape) and not (items and rng.random() < 0.1):
        size = shape[axis]
        kind = rng.choice(["number", "slice", "whole", "new", "tensor", "tensor", "rest", "mask"])
        if kind == "new":
            items.append(None)
            continue
        if kind == "rest":
            if not named:
                items.append(...)
                axis += rng.randint(0, len(shape) - axis)
                named = True
            continue
        if kind == "number":
            items.append(rng.randint(-size, size - 1))
        elif kind == "slice":
            first = rng.randint(0, size - 1)
            items.append(slice(first, rng.randint(first + 1, size), rng.choice([None, 1, 2])))
        elif kind == "tensor":
            places = [rng.randint(-size, size - 1) for _ in range(math.prod(among))]
            items.append(np.array(places).reshape(among))
        elif kind == "mask" and not any(isinstance(x, np.ndarray) for x in items):
            items.append(np.array([True] + [rng.random() < 0.6 for _ in range(size - 1)]))
        else:
            items.append(slice(None))
        axis += 1
    return shape, items


def found(lib: Any, data: np.ndarray, items: list[Any], bare: bool) -> list[np.ndarray] | str:
    """What is read, its gradient, what a number and, unless places come twice, what values leave;
    or the name of the error."""
    place = tuple(lib.tensor(x) if isinstance(x, np.ndarray) else x for x in items)
    at = place[0] if bare else place
    try:
        x = lib.tensor(data, requires_grad=True)
        y = x[at]
        (y * y).sum().backward()
        filled, written = lib.tensor(data), lib.tensor(data)
        filled[at] = 3.0
        made = [y.detach().numpy(), x.grad.numpy(), filled.numpy()]
        # Of equal places PyTorch does not say which one counts.
        if not any(isinstance(x, np.ndarray) and x.dtype != bool for x in items):
            values = np.random.default_rng(1).standard_normal(made[0].shape)
            written[at] = lib.tensor(values.astype(np.float32))
            made.append(written.numpy())
    except (IndexError, RuntimeError, ht.TensorError) as error:
        return type(error).__name__
    return made


@pytest.mark.parametrize("turn", range(2))
def test_random_indexes_read_and_write_what_pytorch_does(turn):
    rng = stream(f"indexes {turn}")
    for number in range(CASES):
        shape, items = drawn(rng)
        data = np.random.default_rng(number).standard_normal(shape).astype(np.float32)
        bare = len(items) == 1 and number % 2 == 1
        theirs, ours = found(torch, data, items, bare), found(ht, data, items, bare)
        assert isinstance(theirs, str) == isinstance(ours, str), (shape, items, theirs, ours)
        if not isinstance(theirs, str):
            for a, b in zip(theirs, ours, strict=True):
                np.testing.assert_allclose(b, a, rtol=1e-5, err_msg=f"{shape} {items}")


def test_a_tensor_of_no_axes_in_an_index_is_a_number():
    """Whatever is beside it: it does not say where the axes of others come."""
    data = np.arange(4 * 4 * 2 * 5, dtype=np.float32).reshape(4, 4, 2, 5)
    mask, one = np.array([True, True, False, True]), np.array(-3)
    for items in (
        [slice(None), mask, slice(None), one],
        [one, slice(None), [0, 1], one],
        [..., one],
    ):
        arrays = [np.array(x) if isinstance(x, list) else x for x in items]
        for a, b in zip(
            found(torch, data, arrays, False), found(ht, data, arrays, False), strict=True
        ):
            np.testing.assert_array_equal(b, a)


@pytest.mark.parametrize("items", [[0], [..., 0], [slice(None), 0], [None, 0, 1], [..., 0, None]])
@pytest.mark.parametrize("size", [3, 6])
def test_a_mask_that_is_not_as_large_as_its_axis_is_told(items, size):
    mask = ht.tensor([True] * size)
    place = tuple(mask if x == 0 and isinstance(x, int) else x for x in items)
    x = ht.zeros(5, 4)
    with pytest.raises(ht.RangeError, match=rf"a mask of \({size},\) is not for axes"):
        x[place if len(place) > 1 else mask]
    with pytest.raises(ht.TensorError, match="mask"):
        x[place if len(place) > 1 else mask] = 1.0


def test_a_mask_of_no_axes_is_refused_where_there_are_some():
    with pytest.raises(ht.RangeError, match=r"x\[None\]"):
        ht.zeros(4, 5)[ht.tensor(True)]
