"""Large tensors of which parts are written between looks: in place where nobody can see it."""

import random
from typing import Any

import numpy as np
import pytest
import torch

import stack.framework as ht
from stack.framework import store
from tests.draw import stream

ROWS, WIDTH = 12, 5


class Both:
    """A program in the framework and in PyTorch: buffers whose parts are written while others hold
    what they were."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.libs: tuple[Any, Any] = (ht, torch)
        self.buffers: list[list[Any]] = [[], []]
        self.held: list[list[Any]] = [[], []]
        for _ in range(2):
            self.each(lambda lib, i, x: self.buffers[i].append(lib.tensor(x)), self.data(ROWS))

    def data(self, *shape: int) -> np.ndarray:
        count = int(np.prod((*shape, WIDTH)))
        numbers = [self.rng.randint(-8, 8) / 4 for _ in range(count)]
        return np.array(numbers, np.float32).reshape((*shape, WIDTH))

    def each(self, do: Any, *args: Any) -> None:
        for i, lib in enumerate(self.libs):
            do(lib, i, *args)

    def write(self) -> None:
        kind = self.rng.choice(["row", "rows", "column", "add", "at", "scatter", "copy", "fill"])
        which, row, by = self.rng.randrange(2), self.rng.randrange(ROWS), self.rng.randint(1, 3)
        place = [self.rng.randrange(ROWS) for _ in range(2)]
        source = self.rng.randrange(ROWS)

        def do(lib: Any, i: int, x: Any) -> None:
            b, other = self.buffers[i][which], self.buffers[i][which - 1]
            new = lib.tensor(x)
            match kind:
                case "row":
                    b[row] = new + other[source]
                case "rows":
                    b[row::by] = b[source] * 0.5
                case "column":
                    b[row:, by] = other[row:, 0]
                case "add":
                    b[row] += new * b.sum()
                case "at":
                    b[lib.tensor(place)] = new
                case "scatter":
                    b.index_add_(0, lib.tensor(place), lib.stack([new, b[source]]))
                case "copy":
                    b[row].copy_(other[source])
                case "fill":
                    b[row, by:].fill_(0.5)

        self.each(do, self.data())

    def hold(self) -> None:
        """Keep something that was computed from a buffer, or shares its memory, to be looked at
        later."""
        kind = self.rng.choice(["clone", "detach", "view", "sum", "numpy", "gradient", "jit"])
        which, row = self.rng.randrange(2), self.rng.randrange(ROWS)

        def do(lib: Any, i: int) -> None:
            b = self.buffers[i][which]
            found: Any
            match kind:
                case "clone":
                    found = b.clone()
                case "detach":
                    found = b.detach()
                case "view":
                    found = b[row:]
                case "sum":
                    found = (b * 2).sum(0)
                case "numpy":
                    found = np.array(b.numpy())
                case "gradient":  # PyTorch's needs a copy: it saves no values
                    w = lib.ones(ROWS, WIDTH, requires_grad=True)
                    found = (w, (w * (b.clone() if lib is torch else b)).sum())
                case "jit":
                    call = (lambda f: f) if lib is torch else ht.jit
                    found = call(lambda y: y + b.detach())(lib.ones(WIDTH))
            self.held[i].append(found)

        self.each(do)

    def look(self) -> None:
        which, row, column = (self.rng.randrange(n) for n in (2, ROWS, WIDTH))
        parts = [
            lambda b: b.sum(),
            lambda b: b[row, column],
            lambda b: b[row:],
            lambda b: b[:, row % 2],
        ]
        part = self.rng.choice(parts)
        mine, other = (np.asarray(part(b[which]).tolist()) for b in self.buffers)
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-4)

    def check(self) -> None:
        def value(x: Any) -> Any:
            if isinstance(x, tuple):
                x[1].backward()
                return x[0].grad.numpy()
            return x if isinstance(x, np.ndarray) else x.numpy()

        for mine, other in zip(*self.held, strict=True):
            np.testing.assert_allclose(value(mine), value(other), rtol=1e-4, atol=1e-4)
        for mine, other in zip(*self.buffers, strict=True):
            np.testing.assert_allclose(mine.numpy(), other.numpy(), rtol=1e-4, atol=1e-4)


SEED = stream("overwritten").randrange(10**6)


@pytest.mark.parametrize("device", ["interpreter:0", "cpu:0"])
@pytest.mark.parametrize("seed", range(SEED, SEED + 6))
def test_random_writes_agree_with_pytorch(seed, device):
    ht.set_default_device(device)
    both = Both(seed)
    steps = [both.write, both.write, both.look, both.hold]
    for _ in range(40):
        both.rng.choice(steps)()
    both.check()


def _memory(x):
    region = store.arrays[x.node].region
    return region.buffer, region.offset


WRITES = {
    "a row": lambda x, i, y: x.__setitem__(i, y),
    "rows": lambda x, i, y: x.__setitem__(slice(i, i + 3), y),
    "a part": lambda x, i, y: x.__setitem__((slice(i, None), 2), 1.0),
    "added": lambda x, i, y: x[i].add_(y),
    "copied": lambda x, i, y: x[i].copy_(y),
    "filled": lambda x, i, y: x[i].fill_(2.0),
    "at an index": lambda x, i, y: x.__setitem__(ht.tensor([i]), y),
    "copied at an index": lambda x, i, y: x.index_copy_(0, ht.tensor([i]), y[None]),
    "added at an index": lambda x, i, y: x.index_add_(0, ht.tensor([i]), y[None]),
    "put": lambda x, i, y: x.index_put_((ht.tensor([i]),), y),
}


@pytest.mark.parametrize("what", WRITES)
def test_a_part_is_written_where_it_is(what):
    ht.set_default_device("cpu:0")
    x, y = ht.tensor(np.zeros((64, 8), np.float32)), ht.tensor(np.ones(8, np.float32))
    for i in range(8):
        WRITES[what](x, i + 2, y)
        x[0].sum().item()
        if i == 4:
            before = _memory(x)
    assert _memory(x) == before, "each write of a part has copied all of it"


@pytest.mark.parametrize("held", ["clone", "gradient", "pending", "detached"])
def test_what_somebody_holds_stays_as_it_was(held):
    x = ht.tensor(np.zeros((64, 8), np.float32))
    w = ht.ones(8, requires_grad=True)
    for i in range(6):
        x[i] = float(i + 1)
        total = x.sum().item()
        assert total == 8 * sum(range(1, i + 2))
    if held == "clone":
        kept = x.clone()
    elif held == "gradient":
        loss = (x * w).sum()
        loss.item()
    elif held == "pending":
        kept = (x * 2).sum()
    else:
        kept = x.detach() * 1  # a value of its own
    x[0] = 100.0
    assert x[0, 0].item() == 100.0
    if held == "gradient":
        loss.backward()
        assert w.grad[0].item() == 21.0
    else:
        assert kept.sum().item() == (2 if held == "pending" else 1) * total


def test_a_loop_of_writes_compiles_nothing():
    """As that which makes a mask of lengths: others are other writes, and no other program."""
    ht.set_default_device("cpu:0")

    def masked(lengths):
        mask = ht.zeros(len(lengths), 16)
        for row, length in enumerate(lengths):
            mask[row, :length] = 1.0
        return mask.sum(1).tolist()

    for lengths in ([3, 5, 7], [4, 6, 8]):
        assert masked(lengths) == lengths
    engine = ht.devices.engine("cpu:0")
    before = engine.programs.count
    assert masked([9, 2, 16]) == [9, 2, 16]
    assert engine.programs.count == before


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "uint8", "bool"])
def test_numbers_are_rounded_as_elsewhere(dtype):
    numbers = [True, False] if dtype == "bool" else [0, 1, 255]
    numbers += [0.1, -1e-30, float("inf")] if "float" in dtype else []
    x = ht.zeros(len(numbers), 2, dtype=getattr(ht, dtype))
    peer = torch.zeros(len(numbers), 2, dtype=getattr(torch, dtype))
    for i, number in enumerate(numbers):
        x[i] = number
        peer[i] = number
    np.testing.assert_array_equal(x.float().numpy(), peer.float().numpy())


@pytest.mark.parametrize("value", [ht.zeros, lambda n: ht.tensor([1.0] * n)])
def test_values_that_do_not_fit_a_part_are_refused(value):
    x = ht.zeros(4, 5)
    with pytest.raises(ht.TensorError, match="3"):
        x[1] = value(3)
    x[1] = value(5)
    with pytest.raises(ht.TensorError, match="3"):
        x[2].copy_(value(3))
    assert x.sum().item() == value(5).sum().item()


@pytest.mark.parametrize("number", [1.5, 2**70])
def test_numbers_that_no_element_can_be_are_refused_by_name(number):
    x = ht.zeros(3, dtype=ht.int64)
    with pytest.raises(ht.TensorError, match=r"setitem.*is not a value of i64"):
        x[0] = number
