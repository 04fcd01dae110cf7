"""Reductions to one value along axes. The compiler's loop nest lowers them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hal.core.dtypes import DType
from hal.tile.node import Node, Type
from hal.tile.size import is_fixed
from stack import ops as g
from stack.ops.numeric import identity
from stack.ops.operator import Attrs, NDArray, OpKind
from stack.ops.rules import axes_of, axis_of, need, need_axes, need_axis, need_kind
from stack.ops.sharding import Link, Sharding, unchanged_axes
from stack.ops.table import ALL, NUMBERS, define, doubled, rounded, widened

_NUMPY = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


def _reduce(n: Node, xs: tuple[NDArray, ...]) -> NDArray:
    """Floats are combined in f64; integers in their own type, so that they wrap."""
    x, kind = doubled(xs[0]), n["kind"]
    start = x.dtype.type(identity(kind, n.dtype))
    with np.errstate(all="ignore"):
        y = _NUMPY[kind].reduce(x, axis=n["axes"], dtype=x.dtype, keepdims=True, initial=start)
    return rounded(y, n.dtype)


def _gradient(n: Node, d: Node) -> tuple[Node]:
    (x,) = n.srcs
    if n["kind"] == "sum":
        return (g.expand(d, x.shape),)
    if n["kind"] == "prod":
        return (_prod(n, d),)
    # Equal extremes share alike. They are counted in a wider type: f16 counts only to 2048.
    wide = x.dtype.computed_in
    chosen = g.cast(g.eq(x, g.expand(n, x.shape)), wide)
    share = g.div(g.cast(d, wide), reduce("sum", chosen, n["axes"]))
    return (g.cast(g.mul(chosen, g.expand(share, x.shape)), x.dtype),)


def _first(n: Node, d: Node) -> tuple[Node]:
    """All of it to the first extreme element, in row-major order of the axes, or the first NaN."""
    (x,) = n.srcs
    # Numbers as narrow as they may be: they are computed in as many lanes as the elements then.
    size = math.prod(x.shape[axis] for axis in n["axes"])
    dtype = DType.I32 if is_fixed(size) and size < 1 << 31 else DType.I64
    number, step = g.full(x.shape, 0, dtype), 1
    for axis in reversed(n["axes"]):
        line = tuple(m if i == axis else 1 for i, m in enumerate(x.shape))
        here = g.mul(g.arange(x.shape[axis], dtype), g.full((x.shape[axis],), step, dtype))
        number = g.add(number, g.expand(g.reshape(here, line), x.shape))
        step *= x.shape[axis]
    hit = g.eq(x, g.expand(n, x.shape))
    if x.dtype.is_float:
        hit = g.or_(hit, g.ne(x, x))
    first = reduce("min", g.where(hit, number, g.full_like(number, step)), n["axes"])
    chosen = g.eq(number, g.expand(first, x.shape))
    return (g.where(chosen, g.expand(d, x.shape), g.full_like(x, 0)),)


def _prod(n: Node, d: Node) -> Node:
    """The product of all others is the product of those before and of those after; x may hold
    zeros."""
    (x,), axes = n.srcs, n["axes"]
    kept = [i for i in range(len(x.shape)) if i not in axes]
    order = [*kept, *axes]
    size = math.prod(x.shape[a] for a in axes)
    flat = g.reshape(g.permute(x, order), (*(x.shape[i] for i in kept), size))
    others = g.mul(_before(flat), g.flip(_before(g.flip(flat, -1)), -1))
    moved = g.reshape(others, [x.shape[i] for i in order])
    return g.mul(g.expand(d, x.shape), g.permute(moved, np.argsort(order).tolist()))


def _before(x: Node) -> Node:
    """For each element the product of those before it on the last axis."""
    rank, size = len(x.shape), x.shape[-1]
    if size == 0:
        return x
    first = tuple(int(i == rank - 1) for i in range(rank))
    shifted = g.pad(g.slice_axis(x, -1, 0, size - 1), first, (0,) * rank, 1)
    return g.scan("prod", shifted, -1)


def _best(n: Node) -> Node:
    """The least position whose value is the extreme one, or NaN."""
    (x,), axis = n.srcs, n["axis"]
    best = g.expand(reduce(n.op[3:], x, axis), x.shape)
    hit = g.eq(x, best)
    if x.dtype.is_float:
        hit = g.or_(hit, g.ne(x, x))
    size = x.shape[axis]
    line = tuple(size if i == axis else 1 for i in range(len(x.shape)))
    position = g.expand(g.reshape(g.arange(size), line), x.shape)
    return reduce("min", g.where(hit, position, g.full(x.shape, size, DType.I64)), axis)


def _kept(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    (x,), axes = srcs, attrs["axes"]
    need_kind(attrs["kind"])
    need(x.dtype is not DType.BOOL or attrs["kind"] in ("min", "max"), "bool has only min and max")
    need_axes(axes, len(x.shape))
    return x.with_shape(1 if i in axes else n for i, n in enumerate(x.shape))


def _position(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    (x,), axis = srcs, attrs["axis"]
    need_axis(axis, len(x.shape))
    need(x.shape[axis] > 0, f"axis {axis} has no elements to choose from")
    return Type((*x.shape[:axis], 1, *x.shape[axis + 1 :]), DType.I64)


def _links(n: Node) -> list[Link]:
    axes = n["axes"]
    return [
        Link((axis,), None, n["kind"]) if axis in axes else Link((axis,), axis)
        for axis in range(len(n.shape))
    ]


_REDUCE = define(
    "reduce",
    OpKind.REDUCE,
    ALL,
    "x combined over axes by sum, prod, min or max (bool: min or max); they stay as size 1; no "
    "elements give the kind's identity; f16 and bf16 accumulate in f32, integers wrap, min and "
    "max keep NaN",
    1,
    _kept,
    _reduce,
    _gradient,
    attrs=frozenset({"kind", "axes"}),
    sharding=Sharding(_links, lambda n: ((0,),) if n["kind"] == "sum" and n.dtype.is_float else ()),
)
_EXTREME = define(
    "extreme",
    OpKind.REDUCE,
    ALL,
    "the least (min) or greatest (max) element along axes, as `reduce` gives it, from which a "
    "derivative flows to the first of equal ones alone",
    1,
    _kept,
    _reduce,
    _first,
    attrs=frozenset({"kind", "axes"}),
    sharding=Sharding(unchanged_axes),
    decompose=lambda n: reduce(n["kind"], n.srcs[0], n["axes"]),
)
_ARGMAX = define(
    "argmax",
    OpKind.REDUCE,
    NUMBERS,
    "i64 position of the first greatest element, NaN counting as greatest",
    1,
    _position,
    lambda n, xs: np.asarray(np.argmax(widened(xs[0]), axis=n["axis"], keepdims=True)),
    attrs=frozenset({"axis"}),
    decompose=_best,
    sharding=Sharding(unchanged_axes),
)
_ARGMIN = define(
    "argmin",
    OpKind.REDUCE,
    NUMBERS,
    "i64 position of the first least element, NaN counting as least",
    1,
    _position,
    lambda n, xs: np.asarray(np.argmin(widened(xs[0]), axis=n["axis"], keepdims=True)),
    attrs=frozenset({"axis"}),
    decompose=_best,
    sharding=Sharding(unchanged_axes),
)


def reduce(kind: str, x: Node, axes: int | Sequence[int] | None = None) -> Node:
    """x combined over axes (all without any) by sum, prod, min or max; they stay as size 1."""
    each = axes_of(axes, len(x.shape))
    return _REDUCE(x, kind=kind, axes=each) if each else x


def extreme(kind: str, x: Node, axes: int | Sequence[int] | None = None) -> Node:
    """`reduce` by min or max whose derivative flows to the first extreme element alone."""
    each = axes_of(axes, len(x.shape))
    return _EXTREME(x, kind=kind, axes=each) if each else x


def argmax(x: Node, axis: int) -> Node:
    """The i64 position of the first greatest element or NaN; the axis stays as size 1."""
    return _ARGMAX(x, axis=axis_of(axis, len(x.shape)))


def argmin(x: Node, axis: int) -> Node:
    """The i64 position of the first least element or NaN; the axis stays as size 1."""
    return _ARGMIN(x, axis=axis_of(axis, len(x.shape)))
