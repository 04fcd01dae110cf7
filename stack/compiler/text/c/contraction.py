"""Tiles that take loops of their own: reductions, scans and matrix products, into arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hal.core.dtypes import DType
from hal.tile.node import Node
from hal.tile.numeric import bounds
from hal.tile.ops import COMBINE
from stack.compiler.text.c import arith
from stack.compiler.text.c.nest import LoopNest
from stack.compiler.text.c.scope import PrivateArray, Rule, Scope
from stack.compiler.text.c.trigonometric import trigonometric
from stack.compiler.text.c.types import literal


def combined(scope: Scope, n: Node, a: str, b: str) -> str:
    """Two parts of a reduction or scan as one."""
    return arith.combined(scope.out, COMBINE[n["kind"]], n.dtype, a, b)


def identity(kind: str, dtype: DType) -> str:
    """What changes nothing: of floats the zero that keeps another zero's sign."""
    if kind in ("sum", "prod"):
        zero = -0.0 if dtype.is_float else 0
        return literal(dtype, zero if kind == "sum" else 1)
    if dtype.is_float:
        return literal(dtype, math.inf if kind == "min" else -math.inf)
    low, high = bounds(dtype)
    return literal(dtype, high if kind == "min" else low)


_LANES = 16
"""Partial results of a row: a device's compiler may not reorder sums by itself."""


def _reduce(scope: Scope, n: Node) -> PrivateArray:
    (x,) = n.srcs
    total = scope.declare(n.type)
    _fill(scope, total, identity(n["kind"], n.dtype))
    axis, columns = n["axis"], x.shape[n["axis"]]
    if axis == len(n.shape) and columns % _LANES == 0 and columns > _LANES:
        _reduce_rows(scope, n, total)
    else:
        nest = LoopNest(scope, x.shape)
        at = nest.position
        cell = total.at(at[:axis] + at[axis + 1 :])
        nest.do(f"{cell} = {combined(scope, n, cell, nest.element(x, at))};", n.dtype)
        nest.spend(n.dtype, 1)
        nest.emit()
    return total


def _reduce_rows(scope: Scope, n: Node, total: PrivateArray) -> None:
    """Along the last axis, first into lanes, then the lanes of each row."""
    (x,) = n.srcs
    lanes = scope.declare(n.type.with_shape((*n.shape, _LANES)))
    _fill(scope, lanes, identity(n["kind"], n.dtype))
    nest = LoopNest(scope, (*n.shape, x.shape[-1] // _LANES, _LANES))
    *row, part, lane = nest.position
    column = nest.named_index(f"{part.text} * {_LANES} + {lane.text}", lane.level)
    cell = lanes.at((*row, lane))
    nest.do(f"{cell} = {combined(scope, n, cell, nest.element(x, (*row, column)))};", n.dtype)
    nest.spend(n.dtype, 1)
    nest.emit()
    last = LoopNest(scope, lanes.shape)
    cell = total.at(last.position[:-1])
    last.do(f"{cell} = {combined(scope, n, cell, lanes.at(last.position))};", n.dtype)
    last.spend(n.dtype, 1)
    last.emit()


def _scan(scope: Scope, n: Node) -> PrivateArray:
    (x,) = n.srcs
    prefix, axis = scope.declare(n.type), n["axis"]
    nest = LoopNest(scope, x.shape)
    at = nest.position
    value, cell = nest.element(x, at), prefix.at(at)
    if n.shape[axis] == 1:
        nest.do(f"{cell} = {value};")
    else:
        before = f"{cell[:-1]} - {math.prod(n.shape[axis + 1 :])}]"
        nest.do(f"if ({at[axis].text} == 0) {cell} = {value};")
        nest.do(f"else {cell} = {combined(scope, n, before, value)};", n.dtype)
        nest.spend(n.dtype, 1)
    nest.emit()
    return prefix


def _dot(scope: Scope, n: Node) -> PrivateArray:
    """A row of b is added to a row of sums, times one element of a."""
    a, b, acc = n.srcs
    total, dtype, out = scope.declare(n.type), n.dtype, scope.out
    start = LoopNest(scope, n.shape)
    first = start.element(acc, start.position)
    nest = LoopNest(scope, (n.shape[0], a.shape[1], n.shape[1]))
    row, depth, column = nest.position
    left, right = nest.element(a, (row, depth)), nest.element(b, (depth, column))
    start.do(f"{total.at(start.position)} = {first};")
    start.emit()
    cell = total.at((row, column))
    product = arith.combined(out, "mul", dtype, left, right)
    nest.do(f"{cell} = {arith.combined(out, 'add', dtype, cell, product)};", dtype)
    nest.spend(dtype, 2)
    nest.emit()
    return total


def _fill(scope: Scope, array: PrivateArray, value: str) -> None:
    nest = LoopNest(scope, array.shape)
    nest.do(f"{array.at(nest.position)} = {value};")
    nest.emit()


LOOPS: Mapping[str, Rule] = {
    "reduce": _reduce,
    "scan": _scan,
    "dot": _dot,
    **dict.fromkeys(("sin", "cos"), trigonometric),
}
"""What computes each of them."""
