"""The order of the elements along an axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hal.core.dtypes import DType
from hal.tile.node import Node, Type
from stack import ops as g
from stack.ops.numeric import highest, lowest
from stack.ops.operator import Attrs, NDArray, OpKind
from stack.ops.rules import axis_of, need, need_axis
from stack.ops.sharding import Link, Sharding
from stack.ops.table import ALL, define, widened

I64 = DType.I64
RUN = 16
"""Elements that are put in order by comparing all pairs; runs are then merged."""


def _reference(n: Node, xs: tuple[NDArray, ...]) -> NDArray:
    """By ranks, which are integers, so that a descending order is stable as well."""
    x, axis = widened(xs[0]), n["axis"]
    ranks = np.unique(x, return_inverse=True)[1].reshape(x.shape).astype(np.int64)
    if x.dtype.kind == "f" and x.size:
        ranks[np.isnan(x)] = ranks.max() + 1  # all NaN are one, the greatest
    return np.argsort(-ranks if n["descending"] else ranks, axis, kind="stable")


def _type(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    need_axis(attrs["axis"], len(srcs[0].shape))
    need(isinstance(attrs["descending"], bool), "descending is True or False")
    return srcs[0].with_dtype(I64)


def _keys(x: Node, descending: bool) -> Node:
    """Integers with a sign in the order of x: of floats their bits, with those below the sign
    turned around in negative numbers."""
    if x.dtype is DType.BOOL or (x.dtype.is_int and x.dtype.bits < 32):
        keys = g.cast(x, DType.I32)
    elif x.dtype.is_float:
        wide = g.cast(x, x.dtype.computed_in)
        bits = I64 if wide.dtype is DType.F64 else DType.I32
        zero = g.full_like(wide, 0)
        keys = g.bitcast(g.where(g.eq(wide, zero), zero, wide), bits)
        turned = g.xor(keys, g.full_like(keys, int(highest(bits))))
        keys = g.where(g.lt(keys, g.full_like(keys, 0)), turned, keys)
        keys = g.where(g.ne(wide, wide), g.full_like(keys, int(highest(bits))), keys)
    elif x.dtype.kind == "u":
        bits = I64 if x.dtype.bits == 64 else DType.I32
        keys = g.xor(g.bitcast(x, bits), g.full(x.shape, int(lowest(bits)), bits))
    else:
        keys = x
    return g.not_(keys) if descending else keys


def _sorted(n: Node) -> Node:
    """Runs by rank, merged in pairs until one is left. Only reads at computed places: every element
    of every step is found by itself."""
    (x,), axis = n.srcs, n["axis"]
    rank, size = len(x.shape), x.shape[axis]
    order = [*(i for i in range(rank) if i != axis), axis]
    moved = g.permute(x, order)
    rows = moved.type.size // size
    keys = g.reshape(_keys(moved, n["descending"]), (rows, size))
    run = min(RUN, size)
    whole = run
    while whole < size:
        whole *= 2
    keys = g.pad(keys, (0, 0), (0, whole - size), int(highest(keys.dtype)))
    keys, places = _runs(keys, run)
    while run < whole:
        keys, places = _merged(keys, places, run)
        run *= 2
    found = g.reshape(g.slice_axis(places, 1, 0, size), moved.shape)
    return g.permute(found, np.argsort(order).tolist())


def _runs(keys: Node, run: int) -> tuple[Node, Node]:
    """Each run of neighbours in order, and where its elements were."""
    rows, whole = keys.shape
    shape = (rows, whole // run, run)
    x = g.reshape(keys, shape)
    mine, other = ((*shape[:2], run, 1), (*shape[:2], 1, run))
    square = (*shape, run)
    a, b = (g.expand(g.reshape(x, s), square) for s in (mine, other))
    i, j = (g.expand(g.reshape(g.arange(run), s), square) for s in ((1, 1, run, 1), (1, 1, 1, run)))
    before = g.or_(g.lt(b, a), g.and_(g.eq(b, a), g.lt(j, i)))
    ranks = g.reduce("sum", g.cast(before, I64), 3)
    at = g.expand(g.reshape(ranks, (*shape[:2], 1, run)), square)
    hit = g.eq(at, i)  # whether the element j belongs at place i
    source = g.reduce("sum", g.where(hit, j, g.full_like(j, 0)), 3)
    start = g.mul(g.arange(shape[1]), g.full((shape[1],), run, I64))
    places = g.add(g.reshape(source, shape), g.expand(g.reshape(start, (1, shape[1], 1)), shape))
    places = g.reshape(places, (rows, whole))
    return g.gather(keys, places, 1, batch=True), places


def _merged(keys: Node, places: Node, run: int) -> tuple[Node, Node]:
    """Neighbouring runs merged: before element k of a pair are i of the one and k - i of the other,
    where i is found by bisection (merge path, Odeh et al., 2012)."""
    rows, whole = keys.shape
    shape = (rows, whole)

    def full(value: int) -> Node:
        return g.full(shape, value, I64)

    place = g.expand(g.reshape(g.arange(whole), (1, whole)), shape)
    k = g.and_(place, full(2 * run - 1))
    first = g.sub(place, k)
    second = g.add(first, full(run))

    def key(at: Node) -> Node:
        return g.gather(keys, at, 1, batch=True)

    low = g.maximum(full(0), g.sub(k, full(run)))
    high = g.minimum(k, full(run))
    for _ in range(run.bit_length()):
        middle = g.shr(g.add(low, high), full(1))
        left = key(g.add(first, g.minimum(middle, full(run - 1))))
        right = g.sub(g.sub(k, full(1)), middle)
        right = key(g.add(second, g.maximum(full(0), g.minimum(right, full(run - 1)))))
        more = g.and_(g.lt(low, high), g.le(left, right))
        less = g.and_(g.lt(low, high), g.lt(right, left))
        low = g.where(more, g.add(middle, full(1)), low)
        high = g.where(less, middle, high)
    j = g.sub(k, low)
    here = key(g.add(first, g.minimum(low, full(run - 1))))
    there = key(g.add(second, g.minimum(j, full(run - 1))))
    ended = g.le(full(run), j)
    is_first = g.and_(g.lt(low, full(run)), g.or_(ended, g.le(here, there)))
    source = g.contiguous(g.where(is_first, g.add(first, low), g.add(second, j)))
    return key(source), g.gather(places, source, 1, batch=True)


_ARGSORT = define(
    "argsort",
    OpKind.INDEX,
    ALL,
    "i64 positions that put x in order along an axis, equal elements in the order that they have; "
    "NaN counts as greatest",
    1,
    _type,
    _reference,
    attrs=frozenset({"axis", "descending"}),
    decompose=_sorted,
    sharding=Sharding(lambda n: [Link((i,), i) for i in range(len(n.shape)) if i != n["axis"]]),
)

__all__ = ["argsort"]


def argsort(x: Node, axis: int, descending: bool = False) -> Node:
    """The i64 positions that put x in order along an axis; a stable order, NaN greatest."""
    return _ARGSORT(x, axis=axis_of(axis, len(x.shape)), descending=descending)
