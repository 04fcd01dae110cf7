"""Elements that a mask keeps, their number known."""

from __future__ import annotations

from collections.abc import Sequence

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework.expr import elementwise as e
from stack.framework.expr.operand import broadcast_shape
from stack.framework.expr.sort import searchsorted

I64 = DType.I64


def _flat(x: Node) -> Node:
    return g.reshape(x, (x.type.size,))


def kept(mask: Node, count: int) -> Node:
    """i64[count]: the places in row-major order where the mask holds: each is where the number of
    those so far is reached, found by bisection."""
    if not count:
        return g.full((0,), 0, I64)
    so_far = g.scan("sum", g.cast(_flat(mask), I64), 0)
    return searchsorted(so_far, e.add(g.arange(count), 1))


def places(mask: Node, count: int) -> list[Node]:
    """For each axis i64[count]: where the mask holds."""
    at, found = kept(mask, count), []
    for n in reversed(mask.shape or (1,)):
        found.append(e.remainder(at, n) if n else at)
        at = e.floor_divide(at, n) if n else at
    return found[::-1]


def columns(parts: Sequence[Node], scalar: bool = False) -> Node:
    """Vectors as columns; of a 0-d mask none."""
    size = parts[0].shape[0]
    if scalar:
        return g.full((size, 0), 0, I64)
    return g.concat([g.reshape(p, (size, 1)) for p in parts], 1)


def together(x: Node, mask: Node) -> list[Node]:
    """Both in their common shape."""
    shape = broadcast_shape([x.shape, mask.shape])
    return [g.broadcast(x, shape), g.broadcast(mask, shape)]


def selected(x: Node, mask: Node, count: int) -> Node:
    """x's elements where the mask of its shape holds, in a row."""
    return g.gather(_flat(x), kept(mask, count), 0) if count else g.full((0,), 0, x.dtype)


def first_of_runs(row: Node) -> Node:
    """Whether an element differs from the one before."""
    n = row.shape[0]
    if n < 2:
        return g.full((n,), True, DType.BOOL)
    apart = g.ne(g.slice_axis(row, 0, 1, n), g.slice_axis(row, 0, 0, n - 1))
    return g.pad(apart, (1,), (0,), True)


def numbers(first: Node, order: Node | None) -> Node:
    """For each element the number of its run, from 0; put where `order` says it was."""
    if not first.shape[0]:
        return g.full((0,), 0, I64)
    found = e.sub(g.scan("sum", g.cast(first, I64), 0), 1)
    if order is None:
        return found
    return g.scatter("set", g.full(found.shape, 0, I64), order, found, 0)


def lengths(first: Node, count: int) -> Node:
    """How many elements each run has."""
    n = first.shape[0]
    starts = kept(first, count)
    if not count:
        return starts
    ends = g.concat([g.slice_axis(starts, 0, 1, count), g.full((1,), n, I64)], 0)
    return g.sub(ends, starts)


def tallied(x: Node, weights: Node | None, size: int) -> Node:
    """i64[size], or the weights' float type: how often each number is in x."""
    if weights is None:
        updates = g.full((x.type.size,), 1, I64)
    else:
        wide = weights.dtype if weights.dtype.is_float else DType.F64
        updates = g.cast(_flat(weights), wide)
    base = g.full((size,), 0, updates.dtype)
    return g.scatter("sum", base, g.cast(_flat(x), I64), updates, 0) if size else base
