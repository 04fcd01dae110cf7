"""Indexing: x[...] with ints, slices, None, Ellipsis and one integer tensor."""

from __future__ import annotations

from typing import Any

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework.errors import TensorError
from stack.framework.expr import elementwise as e
from stack.framework.expr.operand import as_node, axis, real_axis, text
from stack.framework.expr.public import operator
from stack.ops import INDEX

BASIC = "index with ints, slices, None, ... and at most one integer tensor"


def getitem(x: Node, index: Any) -> Node:
    """x[index] as in PyTorch, for basic indices and at most one integer tensor."""
    items = expanded(x, index)
    tensors = [i for i in items if isinstance(i, Node)]
    if len(tensors) > 1:
        raise TensorError(f"{len(tensors)} index tensors at once; {BASIC}")
    x, items = _sliced(x, items)
    at = 0
    for item in items:
        if item is None:
            x = g.reshape(x, (*x.shape[:at], 1, *x.shape[at:]))
        elif isinstance(item, int):
            x = g.reshape(x, (*x.shape[:at], *x.shape[at + 1 :]))
            continue
        elif isinstance(item, Node):
            x = take(x, item, at)
            at += len(item.shape) - 1
        at += 1
    return x


def expanded(x: Node, index: Any) -> list[Any]:
    """One item for each axis of x, and the Nones between them."""
    items = list(index) if isinstance(index, tuple) else [index]
    for item in items:
        _check(item)
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise TensorError("an index has at most one ...")
    used = sum(item is not None and item is not Ellipsis for item in items)
    missing = len(x.shape) - used
    if missing < 0:
        raise TensorError(f"{used} indices for {text(x)}")
    at = dots[0] if dots else len(items)
    return [*items[:at], *[slice(None)] * missing, *items[at + 1 :]]


def _check(item: Any) -> None:
    if isinstance(item, bool) or (isinstance(item, Node) and item.dtype is DType.BOOL):
        raise TensorError(
            "a bool mask would give a shape that depends on values; use where(mask, a, b) or "
            "masked_fill"
        )
    if isinstance(item, Node) and not item.dtype.is_int:
        raise TensorError(f"an index tensor holds integers, got {text(item)}")
    if not (item is None or item is Ellipsis or isinstance(item, int | slice | Node)):
        raise TensorError(f"cannot index with {type(item).__name__}; {BASIC}")


def _sliced(x: Node, items: list[Any]) -> tuple[Node, list[Any]]:
    """x with all ints (as slices of one element) and slices applied, axes as they were."""
    start, stop, step, flipped, a = [], [], [], [], 0
    for item in items:
        if item is None:
            continue
        lo, hi, by, reverse = _range(item, x.shape[a], a)
        start.append(lo)
        stop.append(hi)
        step.append(by)
        if reverse:
            flipped.append(a)
        a += 1
    return g.flip(g.slice(x, start, stop, step), flipped), items


def _range(item: Any, n: int, a: int) -> tuple[int, int, int, bool]:
    """start, stop, step > 0 of an item, and whether its order is reversed."""
    if isinstance(item, int):
        if not -n <= item < n:
            raise TensorError(f"index {item} is out of range for dim {a} of size {n}")
        return item % n, item % n + 1, 1, False
    if isinstance(item, Node):
        return 0, n, 1, False
    if item.step is not None and not isinstance(item.step, int):
        raise TensorError(f"a slice's step is an int, got {item.step!r}")
    places = range(*item.indices(n))
    if not places:
        return 0, 0, 1, False
    low, high = min(places[0], places[-1]), max(places[0], places[-1])
    return low, high + 1, abs(places.step), places.step < 0 and len(places) > 1


def take(x: Node, index: Node, dim: int) -> Node:
    """x's slices at `index` along an axis; -1 is the last one. Out of range gives 0."""
    a = real_axis(dim, x, "look up slices along")
    wide = index if index.dtype in INDEX else g.cast(index, DType.I64)
    wrapped = e.where(e.lt(wide, 0), e.add(wide, x.shape[a]), wide)
    return g.gather(x, wrapped, a)


@operator(aten="index_select", onnx="Gather")
def index_select(x: Node, dim: int, index: Node) -> Node:
    """The slices at these positions of an axis."""
    return take(x, index, dim)


@operator(function=False, method=False, layer=True, aten="embedding")
def embedding(x: Node, weight: Node) -> Node:
    """weight's rows at the integers x, which must be in range (others give 0)."""
    index = x
    if not index.dtype.is_int:
        raise TensorError(f"an embedding is looked up by integers, got {text(index)}")
    return g.gather(weight, index if index.dtype in INDEX else g.cast(index, DType.I64), 0)


@operator(aten="gather", onnx="GatherElements")
def gather(x: Node, dim: int, index: Node) -> Node:
    """y[i][j] = x[i][index[i][j]] for dim 1, and so on: by comparison with each position, for short
    axes."""
    a = axis(dim, len(x.shape))
    if len(index.shape) != len(x.shape) or not index.dtype.is_int:
        raise TensorError(f"the index has x's axes and holds integers: {text(x)}, {text(index)}")
    lows = [0] * len(x.shape)
    cut = g.slice(x, lows, [x.shape[i] if i == a else n for i, n in enumerate(index.shape)])
    moved = g.reshape(cut, (*cut.shape[:a], 1, *cut.shape[a:]))
    wanted = g.reshape(index, (*index.shape[: a + 1], 1, *index.shape[a + 1 :]))
    place = g.reshape(g.arange(x.shape[a]), (x.shape[a], *[1] * (len(x.shape) - 1 - a)))
    hit = e.where(e.eq(wanted, place), moved, 0)
    total = g.reduce("sum" if x.dtype is not DType.BOOL else "max", hit, a + 1)
    return g.reshape(total, index.shape)


def setitem(x: Node, index: Any, value: Node | float) -> Node:
    """x with value in the place of x[index], for ints, slices, None and Ellipsis."""
    items = expanded(x, index)
    if any(isinstance(i, Node) for i in items):
        raise TensorError("cannot assign to places given by a tensor; use where(mask, value, x)")
    inside = getitem(x, index)
    new = g.broadcast(as_node(value, x.dtype), inside.shape)
    mask = g.full(inside.shape, True, DType.BOOL)
    kept = [i for i in items if i is not None]
    return g.where(_spread(mask, kept, x), _spread(new, kept, x), x)


def _spread(value: Node, items: list[Any], x: Node) -> Node:
    """value at the places of x that the items name, 0 elsewhere."""
    ranges = [_range(item, n, a) for a, (item, n) in enumerate(zip(items, x.shape, strict=True))]
    sizes = [len(range(lo, hi, by)) for lo, hi, by, _ in ranges]
    v = g.flip(g.reshape(value, sizes), [a for a, r in enumerate(ranges) if r[3]])
    for a, ((lo, _, by, _), n) in enumerate(zip(ranges, x.shape, strict=True)):
        v = _stretched(v, a, by)
        rank = len(v.shape)
        used = v.shape[a]
        v = g.pad(
            v,
            [lo if i == a else 0 for i in range(rank)],
            [n - lo - used if i == a else 0 for i in range(rank)],
        )

    return v


def _stretched(x: Node, a: int, by: int) -> Node:
    """x with by - 1 zeros between neighbours on an axis."""
    n = x.shape[a]
    if by == 1 or n <= 1:
        return x
    split = g.reshape(x, (*x.shape[: a + 1], 1, *x.shape[a + 1 :]))
    rank = len(split.shape)
    zeros = [by - 1 if i == a + 1 else 0 for i in range(rank)]
    joined = g.pad(split, [0] * rank, zeros)
    flat = g.reshape(joined, (*x.shape[:a], n * by, *x.shape[a + 1 :]))
    return g.slice_axis(flat, a, 0, n * by - (by - 1))
