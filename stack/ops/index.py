"""Reading and writing slices at positions that are data. The compiler's templates lower them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hal.core.dtypes import DType
from hal.tile.node import Node, Type
from stack import ops as g
from stack.ops.error import GraphError
from stack.ops.operator import Attrs, NDArray, OpKind
from stack.ops.rules import KINDS, axis_of, need, need_axis
from stack.ops.sharding import Link, Sharding, Share, linear_in, same_attributes
from stack.ops.table import ALL, INDEX, define, doubled, rounded

_COMBINE: dict[str, Any] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def _rows(n: Node, x: NDArray, index: NDArray) -> tuple[NDArray, NDArray]:
    """x as [rows, size, after], and the positions of each row."""
    axis = n["axis"]
    before, after = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    each = index.reshape(before, -1) if n["batch"] and index.size else index.reshape(1, -1)
    each = np.broadcast_to(each, (before, each.shape[1]))
    return x.reshape(before, x.shape[axis], after), each


def _gather(n: Node, xs: tuple[NDArray, ...]) -> NDArray:
    x, each = _rows(n, *xs)
    if not n.type.size:
        return np.zeros(n.shape, x.dtype)
    inside = (each >= 0) & (each < x.shape[1])
    found = np.zeros((*each.shape, x.shape[2]), x.dtype)
    row, place = np.nonzero(inside)
    found[row, place] = x[row, each[row, place]]
    return found.reshape(n.shape)


def _scatter(n: Node, xs: tuple[NDArray, ...]) -> NDArray:
    base, index, updates = xs
    if not updates.size:
        return base
    total, each = _rows(n, (base if n["kind"] == "set" else doubled(base)).copy(), index)
    added = updates.astype(total.dtype).reshape(total.shape[0], -1, total.shape[2])
    row, place = np.nonzero((each >= 0) & (each < total.shape[1]))
    where = row, each[row, place]
    with np.errstate(all="ignore"):
        if n["kind"] == "set":
            total[where] = added[row, place]
        else:
            _COMBINE[n["kind"]].at(total, where, added[row, place])
    return rounded(total.reshape(n.shape), n.dtype)


def _scatter_gradient(n: Node, d: Node) -> tuple[Node, None, Node]:
    """Of "set", what an update replaces has none, and each update that of its place."""
    base, index, updates = n.srcs
    kind, at = n["kind"], (n["axis"], n["batch"])
    here = gather(d, index, *at)
    if kind == "sum":
        return d, None, here
    if kind == "set":
        return scatter("set", d, index, g.full_like(updates, 0), *at), None, here
    if kind == "prod":
        # The product of the others, some of which may be 0.
        base, index, updates = n.srcs
        at = (n["axis"], n["batch"])
        empty = [g.eq(x, g.full_like(x, 0)) for x in (base, updates)]
        solid = [
            g.where(e, g.full_like(x, 1), x) for e, x in zip(empty, (base, updates), strict=True)
        ]
        product = scatter("prod", solid[0], index, solid[1], *at)
        zeros = scatter("sum", g.cast(empty[0], d.dtype), index, g.cast(empty[1], d.dtype), *at)

        def of(x: Node, is_zero: Node, whole: Node, count: Node) -> Node:
            nothing, one = g.full_like(x, 0), g.full_like(x, 1)
            alone = g.where(g.eq(count, one), whole, nothing)
            rest = g.where(g.eq(count, nothing), g.div(whole, g.where(is_zero, one, x)), nothing)
            return g.where(is_zero, alone, rest)

        scaled = g.mul(product, d)
        there = of(updates, empty[1], gather(scaled, index, *at), gather(zeros, index, *at))
        return of(base, empty[0], scaled, zeros), None, there
    own, theirs = g.eq(base, n), g.eq(updates, gather(n, index, *at))
    number = scatter("sum", g.cast(own, d.dtype), index, g.cast(theirs, d.dtype), *at)
    share = g.div(d, number)
    part = g.where(theirs, gather(share, index, *at), g.full_like(updates, 0))
    return g.where(own, share, g.full_like(base, 0)), None, part


def _taken(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    x, index, axis = srcs[0], srcs[1], attrs["axis"]
    need_axis(axis, len(x.shape))
    need(index.dtype in INDEX, "the index must be i32 or i64")
    need(isinstance(attrs["batch"], bool), "batch is True or False")
    own = axis if attrs["batch"] else 0
    if index.shape[:own] != x.shape[:own]:
        raise GraphError(f"the index needs leading axes {x.shape[:own]}")
    return x.with_shape(x.shape[:axis] + index.shape[own:] + x.shape[axis + 1 :])


def _updated(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    expected = _taken(srcs, attrs, asked).shape
    if srcs[2].shape != expected:
        raise GraphError(f"updates need shape {expected}")
    kind = attrs["kind"]
    need(kind in SCATTERS, f"kind is one of {', '.join(SCATTERS)}")
    need(srcs[0].dtype is not DType.BOOL or kind not in ("sum", "prod"), "bool has no sum and prod")
    return srcs[0]


def _taken_links(n: Node) -> list[Link]:
    """Of x all but the axis, of which a rank that has a part gives 0 for positions of others; then
    the axes of the index."""
    axis, (x, index) = n["axis"], n.srcs
    own = axis if n["batch"] else 0
    more = len(index.shape) - own
    free = [
        Link((i, i if i < own else None), i if i < axis else i - 1 + more)
        for i in range(len(x.shape))
        if i != axis
    ]
    places = [Link((None, own + j), axis + j) for j in range(more)]
    return [*free, *places, Link((axis, None), None, "sum", contiguous=True)]


def _updated_links(n: Node) -> list[Link]:
    """Of base all; a rank that has a part of the axis updates what is its own. Updates of several
    ranks that are added are parts of a sum, of which the base is one."""
    axis, (base, index, _) = n["axis"], n.srcs
    own = axis if n["batch"] else 0
    more = len(index.shape) - own
    free = [
        Link((i, i if i < own else None, i if i < axis else i - 1 + more), i)
        for i in range(len(base.shape))
        if i != axis
    ]
    places = [Link(("sum", own + j, axis + j), None, "sum") for j in range(more)]
    added = places if n["kind"] == "sum" else []
    return [*free, *added, Link((axis, None, None), axis, contiguous=True)]


def _shifted(n: Node, srcs: tuple[Node, ...], type: Type, share: Share | None) -> Node:
    """Positions count from where the rank's part of the axis begins."""
    if share is None or srcs[0].shape[n["axis"]] == n.srcs[0].shape[n["axis"]]:
        return same_attributes(n, srcs, type, share)
    index = srcs[1]
    begin = g.mul(share.rank, g.const(share.part, share.rank.dtype))
    moved = g.sub(index, g.broadcast(g.cast(begin, index.dtype), index.shape))
    return same_attributes(n, (srcs[0], moved, *srcs[2:]), type, share)


SCATTERS = ("set", *KINDS)
"""How a scatter combines what is there with an update."""

_GATHER = define(
    "gather",
    OpKind.INDEX,
    ALL,
    "x's slices at `index` along an axis; with `batch` each place of the axes before has positions "
    "of its own; out of range, negative included, gives 0",
    2,
    _taken,
    _gather,
    lambda n, d: (
        scatter("sum", g.full_like(n.srcs[0], 0), n.srcs[1], d, n["axis"], n["batch"]),
        None,
    ),
    attrs=frozenset({"axis", "batch"}),
    data=(0,),
    sharding=Sharding(_taken_links, linear_in((0,)), _shifted),
)
_SCATTER = define(
    "scatter",
    OpKind.INDEX,
    ALL,
    "base with updates, in order, set, added, multiplied or chosen by min or max at `index` along "
    "an axis, `batch` as in gather; out of range is ignored; f16 and bf16 accumulate in f32",
    3,
    _updated,
    _scatter,
    _scatter_gradient,
    attrs=frozenset({"axis", "batch", "kind"}),
    data=(0, 2),
    sharding=Sharding(
        _updated_links,
        lambda n: linear_in((0, 2))(n) if n["kind"] == "sum" else (),
        _shifted,
    ),
)


def gather(x: Node, index: Node, axis: int, batch: bool = False) -> Node:
    """x's slices at i32 or i64 positions along an axis; a position out of range, negative ones
    included, gives 0.

    The shape is x.shape[:axis] + index.shape + x.shape[axis+1:]; with `batch` the index has the
    axes x.shape[:axis] first, and each place of them positions of its own.
    """
    return _GATHER(x, index, axis=axis_of(axis, len(x.shape)), batch=batch)


def scatter(
    kind: str, base: Node, index: Node, updates: Node, axis: int, batch: bool = False
) -> Node:
    """base with updates, of the shape that gather gives, at `index`, one after the other: set, or
    combined by sum, prod, min or max; others are ignored."""
    axis = axis_of(axis, len(base.shape))
    return _SCATTER(base, index, updates, axis=axis, batch=batch, kind=kind)
