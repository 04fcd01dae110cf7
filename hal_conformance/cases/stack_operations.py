"""The library of operations on the device, over types and shapes, against their definitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.core.dtypes import DType
from hal.tile.node import Node, Type
from hal.tile.numeric import NUMPY
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.kernels import need
from hal_conformance.rig import Rig
from hal_conformance.seat import engine_on, near, run, truth
from stack import ops as g

stack_operations = Cases("J", Level.RESILIENT)

F16, F32, F64, BF16 = DType.F16, DType.F32, DType.F64, DType.BF16
I32, I64, U8, BOOL = DType.I32, DType.I64, DType.U8, DType.BOOL
SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (7,), (2, 3, 4), (3, 0, 2))
Values = NDArray[Any]
Given = tuple[Node, Values]


def given(rig: Rig, dtype: DType, *shapes: tuple[int, ...]) -> list[Given]:
    """Inputs of these shapes with small values."""
    need(rig, dtype, I64)
    return [
        (g.input(i, Type(s, dtype)), np.asarray(_values(rig, dtype, s)))
        for i, s in enumerate(shapes)
    ]


def _values(rig: Rig, dtype: DType, shape: tuple[int, ...]) -> Values:
    if dtype.is_float:
        return np.asarray(rig.random.standard_normal(shape)).astype(NUMPY[dtype])
    low = 0 if dtype.kind in "ub" else -9
    return np.asarray(rig.random.integers(low, 10, shape)).astype(NUMPY[dtype])


class Agreement:
    """One engine; each call holds what it computes to the definitions."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.engine = engine_on(rig)
        self.most = max(1, rig.info.limits.args - 4)

    def __call__(self, outputs: Sequence[Node], inputs: Sequence[Given], what: str) -> None:
        """The device computes what the definitions say."""
        for i in range(0, len(outputs), self.most):  # no kernel has more than the inputs and these
            some = outputs[i : i + self.most]
            both = zip(run(self.engine, some, inputs), truth(some, inputs), strict=True)
            for node, (got, wanted) in zip(some, both, strict=True):
                near(self.rig, got, wanted, node.dtype, f"{node.op} of {what} {node.type}")


def _elementwise(dtype: DType, a: Node, b: Node) -> list[Node]:
    if dtype is BOOL:
        return [f(a, b) for f in (g.and_, g.or_, g.xor, g.eq, g.ne)] + [g.not_(a)]
    both = [f(a, b) for f in (g.add, g.sub, g.mul, g.minimum, g.maximum, g.lt, g.eq)]
    both += [g.neg(a), g.abs(a), g.where(g.le(a, b), a, b)]
    if dtype.is_float:
        size = g.abs(a)
        return [*both, g.div(a, g.add(size, g.full_like(a, 1))), g.sqrt(size), g.exp(a), g.tanh(b)]
    return [*both, g.floordiv(a, b), g.mod(a, b), g.and_(a, b), g.xor(a, b)]


EVERY = (F64, F32, F16, BF16, I64, I32, U8, BOOL)


@stack_operations.case("elementwise", "launch.exact", dtype=EVERY)
def _(rig: Rig, dtype: DType) -> None:
    """Zero-dimensional, empty and larger shapes."""
    agree = Agreement(rig)
    for shape in SHAPES:
        inputs = given(rig, dtype, shape, shape)
        (a, _), (b, _) = inputs
        agree(_elementwise(dtype, a, b), inputs, "operands")


MOVES: dict[str, Callable[[Node], Node]] = {
    "transposed": lambda x: g.permute(x, (2, 0, 1)),
    "stepped": lambda x: g.slice(x, (1, 0, 0), (4, 5, 6), (2, 1, 3)),
    "reversed": lambda x: g.flip(x, (0, 2)),
    "padded": lambda x: g.pad(x, (1, 0, 2), (0, 1, 3), 5),
    "joined": lambda x: g.concat([x, g.flip(x, 1), g.slice_axis(x, 1, 0, 2)], 1),
    "repeated": lambda x: g.broadcast(g.slice_axis(x, 1, 2, 3), (2, 4, 5, 6)),
    "reshaped": lambda x: g.reshape(g.permute(x, (1, 0, 2)), (10, 12)),
    "nothing": lambda x: g.slice_axis(x, 0, 2, 2),
}


@stack_operations.case("moved", "launch.exact", how=tuple(MOVES), dtype=(F32, BF16))
def _(rig: Rig, how: str, dtype: DType) -> None:
    """Results read through views that are not contiguous."""
    agree = Agreement(rig)
    inputs = given(rig, dtype, (4, 5, 6))
    moved = MOVES[how](inputs[0][0])
    agree([g.contiguous(moved), g.add(moved, moved)], inputs, how)


@stack_operations.case("reduced", "launch.exact", dtype=(F64, F32, F16, BF16, I64, U8))
def _(rig: Rig, dtype: DType) -> None:
    """Along one axis, all, and an axis without elements, whose sum is 0."""
    agree = Agreement(rig)
    inputs = given(rig, dtype, (3, 4, 5))
    x = inputs[0][0]
    outputs = [g.reduce(kind, x, axes) for kind in ("sum", "min", "max") for axes in (1, None)]
    agree([*outputs, g.argmax(x, 2), g.argmin(x, 0), g.scan("sum", x, 1)], inputs, "a cube")
    empty = given(rig, dtype, (3, 0))
    agree([g.reduce("sum", empty[0][0], 1), g.reduce("prod", empty[0][0])], empty, "nothing")


PRODUCTS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((1, 1), (1, 1)),
    ((3, 5), (5, 4)),
    ((2, 3, 4), (2, 4, 5)),
    ((17, 33), (33, 9)),
    ((3, 0), (0, 2)),
    ((0, 4), (4, 2)),
)


@stack_operations.case("product", "launch.exact", dtype=(F32, F16, BF16, I32), shapes=PRODUCTS)
def _(rig: Rig, dtype: DType, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    agree = Agreement(rig)
    inputs = given(rig, dtype, *shapes)
    agree([g.matmul(inputs[0][0], inputs[1][0])], inputs, "matrices")


@stack_operations.case("indexed", "launch.exact", dtype=(F32, F64, I64), of=(I32, I64))
def _(rig: Rig, dtype: DType, of: DType) -> None:
    """Gathered and scattered rows; an index outside gives 0, and is ignored."""
    need(rig, of)
    agree = Agreement(rig)
    inputs = given(rig, dtype, (6, 3), (5, 3))
    places = np.array([5, 0, 3, -1, 6], NUMPY[of])
    index = (g.input(2, Type((5,), of)), places)
    (table, _), (rows, _) = inputs
    outputs = [g.gather(table, index[0], 0), g.scatter("sum", table, index[0], rows, 0)]
    agree(outputs, [*inputs, index], "rows")


@stack_operations.case("converted", "launch.exact", dtype=EVERY)
def _(rig: Rig, dtype: DType) -> None:
    agree = Agreement(rig)
    inputs = given(rig, dtype, (3, 5))
    others = [d for d in EVERY if d in rig.info.dtypes and d is not dtype]
    agree([g.cast(inputs[0][0], d) for d in others], inputs, "a cast")


@stack_operations.case("host-arrays", "copy.exact", dtype=tuple(DType))
def _(rig: Rig, dtype: DType) -> None:
    """In and out, of every shape, from host arrays that are not contiguous."""
    need(rig, dtype)
    engine = engine_on(rig)
    grid = _values(rig, dtype, (6, 8))
    hosts = [np.asarray(_values(rig, dtype, s)) for s in SHAPES]
    for host in (*hosts, grid.T, grid[::2, 1::3], grid[::-1], np.broadcast_to(grid[:, :1], (6, 4))):
        array = engine.put(host, dtype)
        expect.same(engine.get(array), host, f"an array of shape {host.shape}")
        engine.write(array, host[::-1] if host.ndim else host)
        wanted = host[::-1] if host.ndim else host
        expect.same(engine.get(array), wanted, "the array, written again")
