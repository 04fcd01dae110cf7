"""Updates of a part of an input: what is written, in which order, and that nothing else is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hal.core.dtypes import DType
from hal.tile.node import Node, Type
from stack import ops as g
from stack.compiler.program import GraphRequest
from stack.ir.interpret import interpret
from tests.compiler.lowered import SIMD, lowered, run_lowered
from tests.compiler.mesh.machine import meshed
from tests.compiler.test_random_graphs import budget

F = DType.F32
SHAPES = ((24,), (6, 8), (4, 5, 6), (1, 3, 7, 4))
Made = tuple[list[Node], list[Node]]


def assigned(x: Node, value: Node, start: Sequence[int], step: Sequence[int]) -> Node:
    """x with a value in the place of its elements from `start` on, `step` apart, as writing through
    a window gives it."""

    def spread(v: Node) -> Node:
        for axis, by in enumerate(step):
            v = g.dilate(v, axis, by)
        rest = [n - lo - m for n, lo, m in zip(x.shape, start, v.shape, strict=True)]
        return g.pad(v, start, rest)

    return g.where(spread(g.full(value.shape, True, DType.BOOL)), spread(value), x)


class Drawn:
    """Assignments to parts of the first input, of three."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self.draw = draw
        self.shape = draw(st.sampled_from(SHAPES))
        self.at = g.input(2, Type((2,), DType.I64))
        self.inputs = [g.input(0, Type(self.shape, F)), g.input(1, Type(self.shape, F)), self.at]
        self.seen = self.inputs[:2]

    def number(self, low: int, high: int) -> int:
        found: int = self.draw(st.integers(low, high))
        return found

    def value(self, shape: Sequence[int]) -> Node:
        """Of that shape: a part of what was there before, squared, or added to a sum of it."""
        source = self.seen[self.number(0, len(self.seen) - 1)]
        start = [self.number(0, n - m) for n, m in zip(self.shape, shape, strict=True)]
        part = g.slice(source, start, [lo + m for lo, m in zip(start, shape, strict=True)])
        match self.number(0, 3):
            case 0:
                return g.mul(part, part)
            case 1:
                total = g.reduce("sum", source, tuple(range(len(shape))))
                return g.add(part, g.broadcast(g.reshape(total, (1,) * len(shape)), part.shape))
        return part

    def box(self, x: Node) -> Node:
        start = [self.number(0, n - 1) for n in self.shape]
        count = [self.number(1, n - lo) for n, lo in zip(self.shape, start, strict=True)]
        step = [1 if self.number(0, 3) else 2 for _ in self.shape]
        if self.number(0, 1):  # a row
            start[1:], count = [0] * len(start[1:]), [1, *self.shape[1:]]
        sizes = [(m + by - 1) // by for m, by in zip(count, step, strict=True)]
        return assigned(x, self.value(sizes), start, step)

    def scatter(self, x: Node) -> Node:
        kind = ("set", "sum")[self.number(0, 1)]
        rows = g.expand(self.value((1, *self.shape[1:])), (2, *self.shape[1:]))
        return g.scatter(kind, x, self.at, rows, 0)


@st.composite
def drawn(draw: Callable[[Any], Any]) -> Made:
    """Outputs, the first of which is the first input with parts assigned one after the other, and
    the inputs."""
    d = Drawn(draw)
    x = d.inputs[0]
    for _ in range(d.number(1, 4)):
        x = d.scatter(x) if d.number(0, 4) == 0 else d.box(x)
        d.seen.append(x)
    outputs = [x]
    if d.number(0, 1):
        outputs.append(d.value(d.shape))
    return outputs, d.inputs


@pytest.mark.parametrize("info", [SIMD, meshed(2, 2)], ids=["lanes", "mesh"])
@budget(120)
@given(drawn(), st.integers(0, 99))
def test_what_is_assigned_to_parts_takes_their_place(info: Any, made: Made, seed: int) -> None:
    outputs, inputs = made
    rng, shape = np.random.default_rng(seed), inputs[0].shape
    arrays: list[Any] = [rng.standard_normal(shape).astype(np.float32) for _ in range(2)]
    arrays.append(rng.integers(-1, shape[0] + 1, 2))  # some are outside
    found, _ = run_lowered(outputs, inputs, arrays, [(0, 0)], info)
    expected = interpret(outputs, dict(zip(inputs, arrays, strict=True)))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


X, ROW, AT = (
    g.input(0, Type((1 << 12, 1 << 10), F)),
    g.input(1, Type((1, 1 << 10), F)),
    g.input(2, Type((1,), DType.I64)),
)
COLUMN = g.reshape(g.slice(ROW, (0, 0), (1, 8)), (8, 1))
FIRST = assigned(X, ROW, (0, 0), (1, 1))
SMALL = {
    "a row": FIRST,
    "rows": assigned(FIRST, g.mul(ROW, ROW), (5, 0), (1, 1)),
    "a row and itself": assigned(X, g.add(g.slice(X, (9, 0), (10, 1 << 10)), ROW), (9, 0), (1, 1)),
    "a part of a column": assigned(X, COLUMN, (7, 3), (1, 1)),
    "as one axis": g.reshape(
        assigned(g.reshape(X, (1 << 22,)), g.reshape(ROW, (1 << 10,)), (1 << 20,), (1,)), X.shape
    ),
    "a row at an index": g.scatter("set", X, AT, ROW, 0),
    "added at an index": g.scatter("sum", X, AT, ROW, 0),
}


@pytest.mark.parametrize("what", SMALL)
def test_only_the_part_is_written(what: str) -> None:
    """By as many instances as the part alone has, where all of it would have 4,096."""
    total = g.reduce("sum", g.slice(SMALL[what], (0, 0), (1, 1)), (0, 1))
    program = lowered(GraphRequest((SMALL[what], total), (X, ROW, AT), ((0, 0),)))
    assert not program.copies
    assert sum(prod(c.grid) for c in program.calls) <= 40
    assert not program.temps
