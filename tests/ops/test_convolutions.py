"""Convolutions are windows and products: their meaning, and one kernel for each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch

from hal.tile.node import Node
from stack.ir.interpret import interpret
from tests.compiler.lowered import SIMD, run_lowered
from tests.compiler.mesh.machine import meshed
from tests.compiler.test_random_graphs import shared
from tests.ops.convolutions import (
    Convolution,
    arrays_of,
    assert_agrees,
    on_device,
    random_convolution,
    with_gradients,
)

TARGETS = {"simd": SIMD, "simt": shared(64), "mesh": meshed(2, 2), "scratchpad": meshed(1, 1)}
COUNTS = {"cpu:0": 8, "opencl:0": 2, "sunway:0": 2}
PLAIN = Convolution(2, 1, 3, 5, (4, 4), (3, 3), (1, 1), (1, 1), (1, 1), last=True)
FIRST = Convolution(2, 1, 3, 5, (4, 4), (3, 3), (1, 1), (1, 1), (1, 1), last=False)


def torch_convolution(c: Convolution, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """By torch, whose channels come first and whose weights are (outer, inner, taps)."""
    d, groups = len(c.sizes), c.groups
    images = torch.from_numpy(x).double()
    if c.last:
        images = images.movedim(-1, 1)
    weights = torch.from_numpy(w).double()
    named = {"stride": c.strides, "dilation": c.dilations, "groups": groups}
    if c.transposed:
        weights = weights.reshape(groups, c.inner, *c.taps, c.outer).movedim(-1, 2)
        weights = weights.reshape(groups * c.inner, c.outer, *c.taps)
        spread = getattr(torch.nn.functional, f"conv_transpose{d}d")
        return spread(images, weights, **named).movedim(1, -1).numpy()
    if c.last:
        weights = weights.reshape(groups, *c.taps, c.inner, c.outer).movedim((-1, -2), (1, 2))
    weights = weights.reshape(groups * c.outer, c.inner, *c.taps)
    result = getattr(torch.nn.functional, f"conv{d}d")(images, weights, padding=c.edges, **named)
    return (result.movedim(1, -1) if c.last else result).numpy()


@pytest.mark.parametrize("seed", range(30))
def test_windows_and_products_are_convolutions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    c = random_convolution(rng)
    (y, *_), inputs = with_gradients(c)
    arrays = arrays_of(inputs[:2], rng)
    (found,) = interpret([y], arrays)
    np.testing.assert_allclose(found, torch_convolution(c, *arrays.values()), 1e-5, 1e-5)


@pytest.mark.parametrize("info", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("seed", range(4))
def test_kernels_agree_with_the_interpreter(seed: int, info) -> None:
    rng = np.random.default_rng(seed)

    def run(outputs: Sequence[Node], arrays: Mapping[Node, np.ndarray]) -> list[np.ndarray]:
        return run_lowered(outputs, list(arrays), list(arrays.values()), (), info)[0]

    assert_agrees(random_convolution(rng, 2), run, rng)


@pytest.mark.slow
@pytest.mark.parametrize("name", COUNTS)
def test_devices_agree_with_the_interpreter(name: str) -> None:
    rng = np.random.default_rng(1)
    for evaluate in on_device(name):
        for _ in range(COUNTS[name]):
            assert_agrees(random_convolution(rng, 5), evaluate, rng)


@pytest.mark.parametrize("number", range(3), ids=["forward", "by the images", "by the weights"])
@pytest.mark.parametrize("info", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("c", [PLAIN, FIRST], ids=["channels last", "channels first"])
def test_a_convolution_is_one_kernel(c: Convolution, info, number: int) -> None:
    outputs, inputs = with_gradients(c)
    arrays = arrays_of(inputs, np.random.default_rng(0))
    (found,), program = run_lowered([outputs[number]], inputs, list(arrays.values()), (), info)
    (expected,) = interpret([outputs[number]], arrays)
    np.testing.assert_allclose(found, expected, 1e-4, 1e-4)
    assert len(program.calls) == 1
    assert program.temps == ()
