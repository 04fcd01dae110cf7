"""Orders: sorting, the greatest and least elements, places among sorted ones."""

from __future__ import annotations

import builtins
import math
from typing import Any

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework.errors import TensorError
from stack.framework.expr import elementwise as e
from stack.framework.expr import reduce as r
from stack.framework.expr.operand import axis, text
from stack.framework.expr.public import layer, operator
from stack.framework.expr.reduce import Extreme

I64 = DType.I64
FEW = 64
"""An element is found among the first ones where a row has so many for each of them; else it is
sought by its rank."""


def _at(x: Node, places: Node, a: int) -> Node:
    """x at places along an axis."""
    rank = len(x.shape)
    order = [*(i for i in range(rank) if i != a), a]
    found = g.gather(g.permute(x, order), g.permute(places, order), rank - 1, batch=True)
    back = [*range(a), rank - 1, *range(a, rank - 1)]
    return g.permute(found, back)


@operator(aten="argsort")
def argsort(x: Node, dim: int = -1, descending: bool = False, stable: bool = False) -> Node:
    """The int64 places that put x in order along an axis; the order is always stable."""
    if not x.shape or not x.type.size:
        return g.full(x.shape, 0, I64)
    return g.argsort(x, axis(dim, len(x.shape)), descending)


@operator(aten="sort")
def sort(x: Node, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    """x in order along an axis, and the places where its elements were; NaN counts as greatest and
    the order is always stable."""
    places = argsort(x, dim, descending)
    if not x.shape or not x.type.size:
        return Extreme(x, places)
    return Extreme(_at(x, places, axis(dim, len(x.shape))), places)


@operator(aten="msort")
def msort(x: Node) -> Node:
    """x in order along axis 0."""
    values: Node = sort(x, 0).values
    return values


@operator(aten="topk", onnx="TopK")
def topk(x: Node, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """The k greatest (or least) elements along an axis, in order, and their places."""
    if not x.shape:
        return Extreme(x, g.full((), 0, I64))
    a = axis(dim, len(x.shape))
    if not 0 <= k <= x.shape[a]:
        raise TensorError(f"k is {k}, but dim {dim} of {text(x)} has {x.shape[a]} elements")
    places = g.argsort_first(x, a, k, largest)
    return Extreme(_at(x, places, a), places)


@layer(aten="")
def top_k_top_p(logits: Node, top_k: int = 0, top_p: float = 1.0) -> Node:
    """Logits with -inf for all but the top_k greatest of the last axis (0: all), and but those
    greatest whose probabilities add up to top_p: the one with which they reach it is kept, too.
    Holtzman et al., https://arxiv.org/abs/1904.09751."""
    n = logits.shape[-1] if logits.shape else 0
    if not n or top_k < 0 or not 0 < top_p <= 1:
        raise TensorError(f"top_k is 0 or more and top_p in (0, 1], got {top_k} and {top_p}")
    last = len(logits.shape) - 1
    places = g.argsort_first(logits, last, min(top_k or n, n), True)
    ranked = _at(logits, places, last)
    if top_p < 1:
        chance = r.softmax(g.cast(ranked, ranked.dtype.computed_in), -1)
        before = e.sub(g.scan("sum", chance, last), chance)
        ranked = e.where(e.lt(before, top_p), ranked, -math.inf)
    return g.scatter("set", g.full_like(logits, -math.inf), places, ranked, last, batch=True)


@operator(aten="kthvalue")
def kthvalue(x: Node, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """The k-th least element along an axis, and its place."""
    if not x.shape:
        return Extreme(x, g.full((), 0, I64))
    a = axis(dim, len(x.shape))
    if not 1 <= k <= x.shape[a]:
        raise TensorError(f"k is {k}, but dim {dim} of {text(x)} has {x.shape[a]} elements")
    if FEW * k <= x.shape[a]:
        place = g.slice_axis(g.argsort_first(x, a, k), a, k - 1, k)
    else:
        place = g.argsort_at(x, a, g.full((*x.shape[:a], 1, *x.shape[a + 1 :]), k - 1, I64))
    shape = place.shape if keepdim else (*x.shape[:a], *x.shape[a + 1 :])
    return Extreme(g.reshape(_at(x, place, a), shape), g.reshape(place, shape))


def _middle(x: Node, dim: int | None, keepdim: bool, skip_nan: bool) -> Any:
    if dim is None:
        flat = g.reshape(x, (x.type.size,))
        return _middle(flat, 0, False, skip_nan).values
    if not x.shape:
        return Extreme(x, g.full((), 0, I64))
    a = axis(dim, len(x.shape))
    if not x.shape[a]:
        raise TensorError(f"dim {dim} of {text(x)} has no elements")
    number = r.sum(g.cast(g.not_(e.isnan(x)), I64), a, keepdim=True)
    middle = e.clamp(e.floor_divide(e.sub(number, 1), 2), min=0)
    place = g.argsort_at(x, a, middle)
    if not skip_nan:
        first_nan = r.argmax(g.cast(e.isnan(x), DType.I32), a, keepdim=True)
        place = e.where(e.lt(number, x.shape[a]), first_nan, place)
    shape = place.shape if keepdim else (*x.shape[:a], *x.shape[a + 1 :])
    return Extreme(g.reshape(_at(x, place, a), shape), g.reshape(place, shape))


@operator(aten="median")
def median(x: Node, dim: int | None = None, keepdim: bool = False) -> Any:
    """The middle element, the lower one of two, of all or along an axis with its place; NaN where
    there is one."""
    return _middle(x, dim, keepdim, skip_nan=False)


@operator(aten="nanmedian")
def nanmedian(x: Node, dim: int | None = None, keepdim: bool = False) -> Any:
    """median of what is no NaN."""
    return _middle(x, dim, keepdim, skip_nan=True)


@operator(aten="mode")
def mode(x: Node, dim: int = -1, keepdim: bool = False) -> Any:
    """The least of the most frequent elements along an axis, and the last place where it is."""
    if not x.shape:
        return Extreme(x, g.full((), 0, I64))
    a = axis(dim, len(x.shape))
    order = argsort(x, a)
    v = _at(x, order, a)
    n = x.shape[a]
    left = g.reshape(v, (*v.shape[:a], n, 1, *v.shape[a + 1 :]))
    right = g.reshape(v, (*v.shape[:a], 1, n, *v.shape[a + 1 :]))
    count = r.sum(g.cast(e.eq(left, right), I64), a + 1)
    best = r.argmax(count, a, keepdim=True)
    often = r.amax(count, a, keepdim=True)
    place = _at(order, e.sub(e.add(best, often), 1), a)
    shape = place.shape if keepdim else (*x.shape[:a], *x.shape[a + 1 :])
    return Extreme(g.reshape(_at(x, place, a), shape), g.reshape(place, shape))


_INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


@operator(aten="quantile")
def quantile(
    x: Node, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Node:
    """What the share q, or each of shares, of the elements is at most, between two neighbours by
    interpolation; NaN where there is one."""
    return _quantile(x, q, dim, keepdim, interpolation, skip_nan=False)


@operator(aten="nanquantile")
def nanquantile(
    x: Node, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Node:
    """quantile of what is no NaN."""
    return _quantile(x, q, dim, keepdim, interpolation, skip_nan=True)


def _quantile(
    x: Node, q: Any, dim: int | None, keepdim: bool, interpolation: str, skip_nan: bool
) -> Node:
    if interpolation not in _INTERPOLATIONS:
        raise TensorError(f"interpolation is one of {_INTERPOLATIONS}, got {interpolation!r}")
    rank = len(x.shape)
    shares = q if isinstance(q, Node) else g.const(q, x.dtype)
    a = 0 if dim is None else axis(dim, rank)
    v = g.reshape(x, (x.type.size,)) if dim is None or not rank else x
    moved = g.permute(v, [*(i for i in range(len(v.shape)) if i != a), a])
    n = moved.shape[-1]
    number = r.sum(g.cast(g.not_(e.isnan(moved)), x.dtype), -1, keepdim=True)
    last = e.clamp(e.sub(number, 1), min=0.0) if skip_nan else g.full_like(number, n - 1)
    flat = g.reshape(shares, (shares.type.size,))
    at = e.mul(last, flat)
    if interpolation in ("lower", "higher", "nearest"):
        at = {"lower": g.floor, "higher": g.ceil, "nearest": g.round}[interpolation](at)
    low = g.floor(at)
    weight = g.full_like(at, 0.5) if interpolation == "midpoint" else e.sub(at, low)
    ranks = g.cast(g.concat([low, g.ceil(at)], len(at.shape) - 1), I64)
    both = _at(moved, g.argsort_at(moved, -1, ranks), len(at.shape) - 1)
    below, above = (g.slice_axis(both, -1, i, i + flat.shape[0]) for i in (0, flat.shape[0]))
    found = e.lerp(below, above, weight)
    bad = e.eq(number, 0) if skip_nan else e.lt(number, n)
    found = e.where(bad, math.nan, found)
    found = g.permute(found, [len(found.shape) - 1, *range(len(found.shape) - 1)])
    lead = found.shape[:1] if shares.shape else ()
    rest = list(found.shape[1:])
    if keepdim:
        rest = [1] * rank if dim is None else [*rest[:a], 1, *rest[a:]] if rank else []
    return g.reshape(found, (*lead, *rest))


@operator(method=False, named=(("input", "values"), ("self", "values")), aten="searchsorted")
def searchsorted(
    sorted_sequence: Node,
    values: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Node | None = None,
) -> Node:
    """How many elements of each sorted row are below each value; on the right side, at most."""
    if side not in (None, "left", "right") or (side == "left" and right):
        raise TensorError(f'side is "left" or "right" as right says, got {side!r}, {right}')
    rows = sorted_sequence
    if sorter is not None:
        rows = _at(rows, sorter, len(rows.shape) - 1)
    v = values if isinstance(values, Node) else g.const(values, rows.dtype)
    n, upper = rows.shape[-1], right or side == "right"
    one_row = len(rows.shape) == 1
    flat = g.reshape(v, (1, v.type.size)) if one_row else v
    table = g.reshape(rows, (1, n)) if one_row else rows
    low, high = g.full(flat.shape, 0, I64), g.full(flat.shape, n, I64)
    for _ in range(n.bit_length()):
        middle = e.floor_divide(e.add(low, high), 2)
        found = g.gather(table, e.clamp(middle, max=builtins.max(n - 1, 0)), len(table.shape) - 1,
                         batch=True)  # fmt: skip
        below = e.le(found, flat) if upper else e.lt(found, flat)
        if found.dtype.is_float:
            below = g.and_(below, g.not_(e.isnan(found)))
            below = g.or_(below, g.and_(e.isnan(flat), g.not_(e.isnan(found))))
        goes_on = e.lt(low, high)
        low, high = (
            g.where(g.and_(goes_on, below), e.add(middle, 1), low),
            g.where(g.and_(goes_on, g.not_(below)), middle, high),
        )
    return g.cast(g.reshape(low, v.shape), DType.I32 if out_int32 else I64)


@operator(aten="bucketize")
def bucketize(x: Any, boundaries: Node, *, out_int32: bool = False, right: bool = False) -> Node:
    """The number of the bucket between sorted boundaries in which each element is."""
    return searchsorted(boundaries, x, out_int32=out_int32, right=right)


@operator(named=(("elements", "x"), ("test_element", "test_elements")), aten="isin")
def isin(x: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Node:
    """Whether each element is among others."""
    v = x if isinstance(x, Node) else g.const(x, test_elements.dtype)
    those = test_elements if isinstance(test_elements, Node) else g.const(test_elements, v.dtype)
    flat = g.reshape(those, (those.type.size,))
    if not flat.shape[0]:
        return g.full(v.shape, invert, DType.BOOL)
    hit = r.any_(e.eq(g.reshape(v, (*v.shape, 1)), flat), -1)
    return g.not_(hit) if invert else hit
