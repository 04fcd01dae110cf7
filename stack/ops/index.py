"""Reading and adding slices at positions that are data. The compiler's loop nest lowers them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hal.tile.node import Node, Type
from stack import ops as g
from stack.ops.error import GraphError
from stack.ops.operator import Attrs, NDArray, OpKind
from stack.ops.rules import axis_of, need, need_axis
from stack.ops.sharding import Link, Sharding, Share, linear_in, same_attributes
from stack.ops.table import ALL, INDEX, NUMBERS, define, doubled, rounded


def _gather(n: Node, xs: tuple[NDArray, ...]) -> NDArray:
    (x, index), axis = xs, n["axis"]
    result = np.zeros((*x.shape[:axis], index.size, *x.shape[axis + 1 :]), x.dtype)
    place = (slice(None),) * axis
    inside = _inside(index.ravel(), x.shape[axis])
    result[(*place, inside)] = np.take(x, index.ravel()[inside], axis)
    return result.reshape(n.shape)


def _inside(index: NDArray, size: int) -> NDArray:
    return np.asarray((index >= 0) & (index < size))


def _scatter_add(n: Node, xs: tuple[NDArray, ...]) -> NDArray:
    (base, index, updates), axis = xs, n["axis"]
    before, after = math.prod(base.shape[:axis]), math.prod(base.shape[axis + 1 :])
    total = doubled(base).copy().reshape(before, base.shape[axis], after)
    inside = _inside(index.ravel(), base.shape[axis])
    added = doubled(updates).reshape(before, index.size, after)[:, inside]
    where: Any = (slice(None), index.ravel()[inside])
    with np.errstate(all="ignore"):
        np.add.at(total, where, added)
    return rounded(total.reshape(n.shape), n.dtype)


def _gather_gradient(n: Node, d: Node) -> tuple[Node, None]:
    x, index = n.srcs
    return scatter_add(g.full_like(x, 0), index, d, n["axis"]), None


def _taken(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    x, index, axis = srcs[0], srcs[1], attrs["axis"]
    need_axis(axis, len(x.shape))
    need(index.dtype in INDEX, "the index must be i32 or i64")
    return x.with_shape(x.shape[:axis] + index.shape + x.shape[axis + 1 :])


def _added(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    expected = _taken(srcs, attrs, asked).shape
    if srcs[2].shape != expected:
        raise GraphError(f"updates need shape {expected}")
    return srcs[0]


def _taken_links(n: Node) -> list[Link]:
    """Of x all but the axis, of which a rank that has a part gives 0 for positions of others; then
    the axes of the index."""
    axis, (x, index) = n["axis"], n.srcs
    more = len(index.shape)
    free = [
        Link((i, None), i if i < axis else i - 1 + more) for i in range(len(x.shape)) if i != axis
    ]
    places = [Link((None, j), axis + j) for j in range(more)]
    return [*free, *places, Link((axis, None), None, "sum", contiguous=True)]


def _added_links(n: Node) -> list[Link]:
    """Of base all; a rank that has a part of the axis adds what is for it. Updates of several ranks
    are parts of a sum, of which the base is one."""
    axis, (base, index, _) = n["axis"], n.srcs
    more = len(index.shape)
    free = [
        Link((i, None, i if i < axis else i - 1 + more), i)
        for i in range(len(base.shape))
        if i != axis
    ]
    places = [Link(("sum", j, axis + j), None, "sum") for j in range(more)]
    return [*free, *places, Link((axis, None, None), axis, contiguous=True)]


def _shifted(n: Node, srcs: tuple[Node, ...], type: Type, share: Share | None) -> Node:
    """Positions count from where the rank's part of the axis begins."""
    if share is None or srcs[0].shape[n["axis"]] == n.srcs[0].shape[n["axis"]]:
        return same_attributes(n, srcs, type, share)
    index = srcs[1]
    begin = g.mul(share.rank, g.const(share.part, share.rank.dtype))
    moved = g.sub(index, g.broadcast(g.cast(begin, index.dtype), index.shape))
    return same_attributes(n, (srcs[0], moved, *srcs[2:]), type, share)


_GATHER = define(
    "gather",
    OpKind.INDEX,
    ALL,
    "x's slices at `index` along an axis; out of range, negative included, gives 0",
    2,
    _taken,
    _gather,
    _gather_gradient,
    attrs=frozenset({"axis"}),
    data=(0,),
    sharding=Sharding(_taken_links, linear_in((0,)), _shifted),
)
_SCATTER_ADD = define(
    "scatter_add",
    OpKind.INDEX,
    NUMBERS,
    "base with updates added at `index` along an axis; out of range is ignored; f16 and bf16 "
    "accumulate in f32",
    3,
    _added,
    _scatter_add,
    lambda n, d: (d, None, gather(d, n.srcs[1], n["axis"])),
    attrs=frozenset({"axis"}),
    data=(0, 2),
    sharding=Sharding(_added_links, linear_in((0, 2)), _shifted),
)


def gather(x: Node, index: Node, axis: int) -> Node:
    """x's slices at i32 or i64 positions along an axis; a position out of range, negative ones
    included, gives 0.

    The shape is x.shape[:axis] + index.shape + x.shape[axis+1:].
    """
    return _GATHER(x, index, axis=axis_of(axis, len(x.shape)))


def scatter_add(base: Node, index: Node, updates: Node, axis: int) -> Node:
    """base with updates, of the shape that gather gives, added at `index`; others are ignored."""
    return _SCATTER_ADD(base, index, updates, axis=axis_of(axis, len(base.shape)))
