"""Indexing: x[...] and its assignment, gathers and scatters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hal.core.dtypes import DType
from hal.tile.node import Node
from hal.tile.size import is_fixed
from stack import ops as g
from stack.framework import within
from stack.framework.errors import RangeError, TensorError
from stack.framework.expr import elementwise as e
from stack.framework.expr.operand import (
    Number,
    as_node,
    axis,
    broadcast_shape,
    real_axis,
    text,
)
from stack.framework.expr.public import layer, operator
from stack.framework.store import barrier
from stack.ops import INDEX
from stack.ops.numeric import identity

BASIC = "index with ints, slices, None, ..., lists and integer tensors"


def getitem(x: Node, index: Any) -> Node:
    """x[index] as in PyTorch: by ints, slices, None, Ellipsis, and integers in tensors, lists or
    arrays, which broadcast against each other."""
    items = expanded(x, index)
    x, items = _sliced(x, items)
    at, tensors = 0, []
    for item in items:
        if item is None:
            x = g.reshape(x, (*x.shape[:at], 1, *x.shape[at:]))
        elif isinstance(item, int):
            x = g.reshape(x, (*x.shape[:at], *x.shape[at + 1 :]))
            continue
        elif isinstance(item, Node) and item.shape == ():  # as an int, whatever is beside it
            x = take(x, item, at)
            continue
        elif isinstance(item, Node):
            tensors.append((at, item))
        at += 1
    return _looked_up(x, tensors) if tensors else x


def _looked_up(x: Node, tensors: list[tuple[int, Node]]) -> Node:
    """x at the places of its axes that tensors name together: their axes come where these were, or
    first if there are others between them."""
    axes = [a for a, _ in tensors]
    if len(tensors) == 1:
        return take(x, tensors[0][1], axes[0])
    rest = [a for a in range(len(x.shape)) if a not in axes]
    at = axes[0] if _are_neighbours(axes) else 0
    moved = g.permute(x, [*rest[:at], *axes, *rest[at:]])
    return g.gather(_joined(moved, at, len(axes)), _together(x, tensors), at)


def _are_neighbours(axes: Sequence[int]) -> bool:
    return list(axes) == list(range(axes[0], axes[0] + len(axes)))


def _joined(x: Node, at: int, count: int) -> Node:
    """x with so many axes, from that one on, as one."""
    sizes = x.shape[at : at + count]
    return g.reshape(x, (*x.shape[:at], math.prod(sizes), *x.shape[at + count :]))


def _together(x: Node, tensors: Sequence[tuple[int, Node]]) -> Node:
    """The places that tensors name of axes of x, in these axes as one; -1 for what is outside."""
    shape = broadcast_shape(t.shape for _, t in tensors)
    linear = g.full(shape, 0, DType.I64)
    inside = g.full(shape, True, DType.BOOL)
    for a, t in tensors:
        within.check(t, x.shape[a], wraps=True)
        place = g.broadcast(g.cast(_wrapped(t, x.shape[a]), DType.I64), shape)
        inside = g.and_(inside, g.and_(e.le(0, place), e.lt(place, x.shape[a])))
        linear = e.add(e.mul(linear, x.shape[a]), place)
    return e.where(inside, linear, -1)


def expanded(x: Node, index: Any) -> list[Any]:
    """One item for each axis of x, and the Nones between them."""
    items = [_item(i) for i in (index if isinstance(index, tuple) else (index,))]
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise TensorError("an index has at most one ...")
    used = sum(item is not None and item is not Ellipsis for item in items)
    missing = len(x.shape) - used
    if missing < 0:
        raise TensorError(f"{used} indices for {text(x)}")
    at = dots[0] if dots else len(items)
    return [*items[:at], *[slice(None)] * missing, *items[at + 1 :]]


def _item(item: Any) -> Any:
    if isinstance(item, bool) or (isinstance(item, Node) and item.dtype is DType.BOOL):
        raise TensorError(
            "a bool mask would give a shape that depends on values; use where(mask, a, b) or "
            "masked_fill"
        )
    if isinstance(item, list | range | np.ndarray):
        array = np.asarray(item)
        if array.dtype.kind not in "iu" and array.size:
            raise TensorError(f"an index holds integers, got {array.dtype} {list(array.shape)}")
        return literal(array)
    if isinstance(item, Node) and not item.dtype.is_int:
        raise RangeError(f"an index tensor holds integers, got {text(item)}")
    if not (item is None or item is Ellipsis or isinstance(item, int | slice | Node)):
        raise TensorError(f"cannot index with {type(item).__name__}; {BASIC}")
    return item


def literal(array: Any) -> Node:
    """Integers that were written in the program, as constants."""
    numbers = [g.reshape(g.const(int(v), DType.I64), (1,)) for v in array.ravel()]
    flat = g.concat(numbers, 0) if numbers else g.full((0,), 0, DType.I64)
    result = g.reshape(flat, array.shape)
    within.remember(result, array.astype(np.int64))
    return result


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
            raise RangeError(f"index {item} is out of range for dim {a} of size {n}")
        return item % n, item % n + 1, 1, False
    if isinstance(item, Node):
        return 0, n, 1, False
    if item.step is not None and not isinstance(item.step, int):
        raise TensorError(f"a slice's step is an int, got {item.step!r}")
    if not all(is_fixed(x) for x in (n, item.start, item.stop)) and item.step in (None, 1):
        low, high = (_place(x, n, other) for x, other in ((item.start, 0), (item.stop, n)))
        return (low, high, 1, False) if low < high else (0, 0, 1, False)
    places = range(*item.indices(n))
    if not places:
        return 0, 0, 1, False
    low, high = min(places[0], places[-1]), max(places[0], places[-1])
    return low, high + 1, abs(places.step), places.step < 0 and len(places) > 1


def _place(x: int | None, n: int, otherwise: int) -> int:
    """Where a slice of an axis of size n begins or ends."""
    if x is None:
        return otherwise
    at = x + n if x < 0 else x
    return 0 if at < 0 else n if at > n else at


def take(x: Node, index: Node, dim: int, wraps: bool = True) -> Node:
    """x's slices at `index` along an axis; -1 is the last one if it `wraps`. Raises RangeError
    where the host knows the index; a device gives 0 out of range."""
    a = real_axis(dim, x, "look up slices along")
    within.check(index, x.shape[a], wraps=wraps)
    return g.gather(x, _wrapped(index, x.shape[a]), a)


@operator(aten="index_select", onnx="Gather")
def index_select(x: Node, dim: int, index: Node) -> Node:
    """The slices at these positions of an axis, which stays; one position may have no axis."""
    if len(index.shape) > 1:
        raise RangeError(f"index_select takes a row of positions, got {text(index)}")
    if not x.shape:
        return g.reshape(take(_solid(x), index, 0, wraps=False), ())
    return take(x, index if index.shape else g.reshape(index, (1,)), dim, wraps=False)


@layer(aten="embedding")
def embedding(
    input: Node,
    weight: Node,
    padding_idx: int | None = None,
    max_norm: None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Node:
    """weight's rows at the integers input, which must be in range. No gradient flows to the row
    padding_idx."""
    if not input.dtype.is_int:
        raise TensorError(f"an embedding is looked up by integers, got {text(input)}")
    if max_norm is not None or scale_grad_by_freq:
        raise TensorError("max_norm and scale_grad_by_freq are not supported; rescale the weight")
    if sparse:
        raise TensorError("gradients are dense here; leave sparse=True out")
    within.check(input, weight.shape[0])
    table = weight
    if padding_idx is not None:
        row = e.eq(g.arange(weight.shape[0]), padding_idx % max(1, weight.shape[0]))
        column = g.reshape(row, (weight.shape[0], *[1] * (len(weight.shape) - 1)))
        table = e.where(column, barrier(weight), weight)
    return g.gather(table, positions(input), 0)


def positions(index: Node) -> Node:
    """Integers as positions."""
    if not index.dtype.is_int:
        raise TensorError(f"places are integers, got {text(index)}")
    return index if index.dtype in INDEX else g.cast(index, DType.I64)


def _along(x: Node, a: int, index: Node) -> tuple[Node, Node]:
    """x and an index of one rank, with axis `a` last in both: x cut, on other axes, to where the
    index has elements."""
    rank = len(x.shape)
    if len(index.shape) != rank:
        raise TensorError(f"the index has x's axes: {text(x)}, {text(index)}")
    within.check(index, x.shape[a])
    lows = [0] * rank
    stop = [x.shape[i] if i == a else n for i, n in enumerate(index.shape)]
    if any(n > size for n, size in zip(stop, x.shape, strict=True)):
        raise TensorError(f"the index {text(index)} reaches beyond {text(x)}")
    order = [*(i for i in range(rank) if i != a), a]
    return g.permute(g.slice(x, lows, stop), order), g.permute(positions(index), order)


def _back(x: Node, a: int) -> Node:
    """x with its last axis at `a`."""
    order = list(range(len(x.shape) - 1))
    order.insert(a, len(x.shape) - 1)
    return g.permute(x, order)


def _solid(x: Node) -> Node:
    """A 0-d tensor with an axis."""
    return x if x.shape else g.reshape(x, (1,))


@operator(aten="gather", onnx="GatherElements")
def gather(x: Node, dim: int, index: Node, sparse_grad: bool = False) -> Node:
    """y[i][j] = x[i][index[i][j]] for dim 1, and so on."""
    if sparse_grad:
        raise TensorError("gradients are dense here; leave sparse_grad=True out")
    shape, x, index = index.shape, _solid(x), _solid(index)
    a = axis(dim, len(x.shape))
    if not index.type.size:
        return g.full(shape, 0, x.dtype)
    moved, places = _along(x, a, index)
    return g.reshape(_back(g.gather(moved, places, len(x.shape) - 1, batch=True), a), shape)


@operator(aten="take_along_dim")
def take_along_dim(x: Node, indices: Node, dim: int | None = None) -> Node:
    """gather with an index that broadcasts; without a dim of all elements in a row."""
    if dim is None:
        return gather(g.reshape(x, (x.type.size,)), 0, g.reshape(indices, (indices.type.size,)))
    a = axis(dim, len(x.shape))
    shape = broadcast_shape([_but(x.shape, a), _but(indices.shape, a)])
    within.check(indices, x.shape[a], wraps=True)
    wide, index = (g.broadcast(v, (*shape[:a], v.shape[a], *shape[a + 1 :])) for v in (x, indices))
    return gather(wide, a, _wrapped(index, x.shape[a]))


def _but(shape: tuple[int, ...], a: int) -> tuple[int, ...]:
    return (*shape[:a], 1, *shape[a + 1 :])


@operator("take", aten="take")
def take_flat(x: Node, index: Node) -> Node:
    """The elements at these positions of x as one axis."""
    return take(g.reshape(x, (x.type.size,)), index, 0)


# scatters


def _scattered(kind: str, x: Node, dim: int, index: Node, src: Node | float) -> Node:
    """x with src combined at the places of index along an axis."""
    shape, x, index = x.shape, _solid(x), _solid(index)
    a, rank = axis(dim, len(x.shape)), len(x.shape)
    if not index.type.size:
        return g.reshape(x, shape)
    if isinstance(src, Node):
        new = _solid(src)
        if new.dtype is not x.dtype:
            raise TensorError(f"src is of x's element type: {text(x)}, {text(src)}")
        new = g.slice(new, [0] * rank, index.shape)
    else:
        new = g.full(index.shape, src, x.dtype)
    part, places = _along(x, a, index)
    moved = g.permute(new, [*(i for i in range(rank) if i != a), a])
    done = _back(g.scatter(kind, part, places, moved, rank - 1, batch=True), a)
    if done.shape == x.shape:
        return g.reshape(done, shape)
    hi = [n - m for n, m in zip(x.shape, done.shape, strict=True)]
    inside = g.pad(g.full(done.shape, True, DType.BOOL), [0] * rank, hi, False)
    return g.reshape(g.where(inside, g.pad(done, [0] * rank, hi), x), shape)


_KINDS = {
    "add": "sum",
    "multiply": "prod",
    "sum": "sum",
    "prod": "prod",
    "amin": "min",
    "amax": "max",
}


def _kind(reduce: str) -> str:
    if reduce not in _KINDS:
        raise TensorError(f"reduce is one of {', '.join(_KINDS)}, got {reduce!r}")
    return _KINDS[reduce]


@operator(in_place=True, aten="scatter", onnx="ScatterElements")
def scatter(
    x: Node, dim: int, index: Node, src: Any = None, reduce: str | None = None, value: Any = None
) -> Node:
    """x with src at the places of index along an axis, the later ones of equal places; with
    reduce "add" or "multiply" combined with what is there."""
    new = value if src is None else src
    return _scattered("set" if reduce is None else _kind(reduce), x, dim, index, new)


@operator(in_place=True, aten="scatter_add", onnx="ScatterElements")
def scatter_add(x: Node, dim: int, index: Node, src: Node) -> Node:
    """x with src added at the places of index along an axis."""
    return _scattered("sum", x, dim, index, src)


@operator(in_place=True, aten="scatter_reduce", onnx="ScatterElements")
def scatter_reduce(
    x: Node, dim: int, index: Node, src: Node, reduce: str, include_self: bool = True
) -> Node:
    """x with src combined by sum, prod, mean, amin or amax at the places of index along an axis,
    with what was there or, without include_self, in its place."""
    kind = "sum" if reduce == "mean" else _kind(reduce)
    base = x
    if not include_self:
        hit = _scattered("set", g.full(x.shape, False, DType.BOOL), dim, index, True)
        base = g.where(hit, g.full_like(x, identity(kind, x.dtype)), x)
    total = _scattered(kind, base, dim, index, src)
    if reduce != "mean":
        return total
    start = g.full_like(x, 1)
    if not include_self:
        start = g.where(hit, g.full_like(x, 0), start)
    return _mean(total, _scattered("sum", start, dim, index, 1))


def _mean(total: Node, number: Node) -> Node:
    """Of integers rounded down."""
    return e.div(total, number) if total.dtype.is_float else e.floor_divide(total, number)


@operator(in_place=True, aten="index_add")
def index_add(x: Node, dim: int, index: Node, source: Node, alpha: Number = 1) -> Node:
    """x with alpha * source added to its slices at index of an axis."""
    return _slices("sum", x, dim, index, source if alpha == 1 else e.mul(source, alpha))


@operator(in_place=True, aten="index_copy")
def index_copy(x: Node, dim: int, index: Node, source: Node) -> Node:
    """x with source as its slices at index of an axis."""
    return _slices("set", x, dim, index, source)


@operator(in_place=True, aten="index_fill")
def index_fill(x: Node, dim: int, index: Node, value: Node | float) -> Node:
    """x with value as its slices at index of an axis."""
    shape, x, index = x.shape, _solid(x), _solid(index)
    a = axis(dim, len(x.shape))
    within.check(index, x.shape[a], wraps=True)
    places = _wrapped(index, x.shape[a])
    new = g.full((*x.shape[:a], places.type.size, *x.shape[a + 1 :]), True, DType.BOOL)
    hit = g.full(x.shape, False, DType.BOOL)
    hit = g.scatter("set", hit, places, new, a) if places.type.size else hit
    return g.reshape(e.where(hit, as_node(value, x.dtype), x), shape)


@operator(in_place=True, aten="index_reduce")
def index_reduce(
    x: Node, dim: int, index: Node, source: Node, reduce: str, include_self: bool = True
) -> Node:
    """x with source combined by prod, mean, amin or amax with its slices at index of an axis."""
    kind = "sum" if reduce == "mean" else _kind(reduce)
    a, base = axis(dim, len(x.shape)), x
    ones = g.full_like(source, 1)
    if not include_self:
        count = _slices("sum", g.full_like(x, 0), a, index, ones)
        base = g.where(e.gt(count, 0), g.full_like(x, identity(kind, x.dtype)), x)
    total = _slices(kind, base, a, index, source)
    if reduce != "mean":
        return total
    number = _slices("sum", g.full_like(x, 1), a, index, ones)
    if not include_self:
        number = e.where(e.gt(count, 0), count, 1)
    return _mean(total, number)


def _slices(kind: str, x: Node, dim: int, index: Node, source: Node) -> Node:
    shape, x, index, source = x.shape, _solid(x), _solid(index), _solid(source)
    a = axis(dim, len(x.shape))
    wanted = (*x.shape[:a], index.type.size, *x.shape[a + 1 :])
    if len(index.shape) > 1 or source.shape != wanted or source.dtype is not x.dtype:
        raise TensorError(
            f"{text(source)} is not a slice of {text(x)} for each of {text(index)} on dim {dim}"
        )
    if not index.type.size:
        return g.reshape(x, shape)
    within.check(index, x.shape[a])
    return g.reshape(g.scatter(kind, x, _wrapped(index, x.shape[a]), source, a), shape)


def _wrapped(index: Node, size: int) -> Node:
    """Positions, of which negative ones count from the end."""
    wide = positions(index)
    return e.where(e.lt(wide, 0), e.add(wide, size), wide)


@operator(in_place=True, aten="index_put")
def index_put(x: Node, indices: Sequence[Any], values: Node, accumulate: bool = False) -> Node:
    """x with values at x[indices], added to what is there with accumulate."""
    index = tuple(slice(None) if i is None else i for i in indices)
    if not accumulate:
        return setitem(x, index, g.cast(values, x.dtype))
    if isinstance(index[0], Node) and index[0].dtype is DType.BOOL and len(index) == 1:
        return e.add(x, _masked(g.full_like(x, 0), index[0], g.cast(values, x.dtype)))
    items, new = expanded(x, index), g.cast(values, x.dtype)
    if (tensors := _whole_rows(items)) is not None:
        return _at_rows("sum", x, tensors, new)
    places = getitem(g.reshape(g.arange(x.type.size), x.shape), index)
    return _at(x, places, g.broadcast(new, places.shape), "sum")


@operator(in_place=True, aten="put")
def put(x: Node, index: Node, source: Node, accumulate: bool = False) -> Node:
    """x with source at these positions of x as one axis."""
    if index.shape != source.shape and index.type.size != source.type.size:
        raise TensorError(f"{text(source)} has no value for each of {text(index)}")
    within.check(index, x.type.size, wraps=True)
    places = _wrapped(index, x.type.size)
    return _at(x, places, source, "sum" if accumulate else "set")


def _whole_rows(items: Sequence[Any]) -> list[tuple[int, Node]] | None:
    """The axes that tensors name places of, each with its tensor, if these are neighbours and all
    others are whole."""
    tensors = [(a, item) for a, item in enumerate(items) if isinstance(item, Node)]
    named = all(isinstance(item, Node) or item == slice(None) for item in items)
    if not tensors or not named or not _are_neighbours([a for a, _ in tensors]):
        return None
    return tensors if len(tensors) == 1 or all(t.shape for _, t in tensors) else None


def _at_rows(kind: str, x: Node, tensors: list[tuple[int, Node]], value: Node | float) -> Node:
    """x with values combined at the places that tensors name of neighbouring axes."""
    at = tensors[0][0]
    places, flat = _together(x, tensors), _joined(x, at, len(tensors))
    before, behind = flat.shape[:at], flat.shape[at + 1 :]
    new = _filling(value, (*before, *places.shape, *behind), x.dtype)
    if not new.type.size:
        return x
    count = places.type.size
    values = g.reshape(new, (*before, count, *behind))
    return g.reshape(g.scatter(kind, flat, g.reshape(places, (count,)), values, at), x.shape)


def _at(x: Node, places: Node, new: Node, kind: str) -> Node:
    """x with values at positions of x as one axis."""
    size = places.type.size
    if not size:
        return x
    flat, at, values = (
        g.reshape(v, (v.type.size,)) for v in (x, places, g.reshape(new, places.shape))
    )
    return g.reshape(g.scatter(kind, flat, at, values, 0), x.shape)


@operator(in_place=True, aten="masked_scatter")
def masked_scatter(x: Node, mask: Node, source: Node) -> Node:
    """x with the elements of source, in order, where the mask holds."""
    shape = broadcast_shape([x.shape, mask.shape])
    wide, hit = g.broadcast(x, shape), g.broadcast(mask, shape)
    count = g.scan("sum", g.cast(g.reshape(hit, (hit.type.size,)), DType.I64), 0)
    flat = g.reshape(source, (source.type.size,))
    found = g.gather(flat, e.sub(count, 1), 0)
    return g.where(hit, g.reshape(g.cast(found, x.dtype), shape), wide)


def repeat_interleave(
    x: Node, repeats: int | Node, dim: int | None = None, *, output_size: int | None = None
) -> Node:
    """x with each slice of an axis so often in a row; a tensor of numbers needs output_size, their
    sum."""
    if dim is None:
        x, dim = g.reshape(x, (x.type.size,)), 0
    a = axis(dim, len(x.shape))
    n = x.shape[a]
    if isinstance(repeats, int):
        apart = g.reshape(x, (*x.shape[: a + 1], 1, *x.shape[a + 1 :]))
        grown = g.expand(apart, (*x.shape[: a + 1], repeats, *x.shape[a + 1 :]))
        return g.reshape(grown, (*x.shape[:a], n * repeats, *x.shape[a + 1 :]))
    if output_size is None:
        raise TensorError("a tensor of repeats needs output_size, their sum: it is a shape")
    ends = g.scan("sum", g.broadcast(positions(repeats), (n,)), 0)
    place = e.ge(g.reshape(g.arange(output_size), (output_size, 1)), ends)
    return g.gather(x, g.reshape(g.reduce("sum", g.cast(place, DType.I64), 1), (output_size,)), a)


def setitem(x: Node, index: Any, value: Node | float) -> Node:
    """x with value in the place of x[index], for ints, slices, None, Ellipsis and integers in
    tensors, of which the last of equal places counts."""
    mask = index[0] if isinstance(index, tuple) and len(index) == 1 else index
    if isinstance(mask, Node) and mask.dtype is DType.BOOL:
        return _masked(x, mask, as_node(value, x.dtype))
    items = expanded(x, index)
    if (tensors := _whole_rows(items)) is not None:
        return _at_rows("set", x, tensors, value)
    if any(isinstance(i, Node) for i in items):
        places = getitem(g.reshape(g.arange(x.type.size), x.shape), index)
        return _at(x, places, _filling(value, places.shape, x.dtype), "set")
    inside = getitem(x, index)
    new = _filling(value, inside.shape, x.dtype)
    mask = g.full(inside.shape, True, DType.BOOL)
    kept = [i for i in items if i is not None]
    return g.where(_spread(mask, kept, x), _spread(new, kept, x), x)


def _filling(value: Node | float, shape: tuple[int, ...], dtype: DType) -> Node:
    """A value that is to be put in places of that shape: it may have more axes, of size 1, in
    front."""
    v = as_node(value, dtype)
    more = len(v.shape) - len(shape)
    if more > 0 and v.shape[:more] == (1,) * more:
        v = g.reshape(v, v.shape[more:])
    return g.broadcast(v, shape)


def _masked(x: Node, mask: Node, value: Node) -> Node:
    """x with value where a mask of its first axes holds: the same for all, or in order the rows of
    value."""
    rank = len(mask.shape)
    if mask.shape != x.shape[:rank]:
        raise TensorError(f"mask {text(mask)} does not fit {text(x)}")
    rest = x.shape[rank:]
    hit = g.broadcast(g.reshape(mask, (*mask.shape, *[1] * len(rest))), x.shape)
    if len(value.shape) <= len(rest) or value.shape[0] == 1:
        same = g.reshape(value, value.shape[1:]) if len(value.shape) > len(rest) else value
        return g.where(hit, g.broadcast(same, x.shape), x)
    number = g.scan("sum", g.cast(g.reshape(mask, (mask.type.size,)), DType.I64), 0)
    rows = g.gather(g.broadcast(value, (value.shape[0], *rest)), e.sub(number, 1), 0)
    return g.where(hit, g.reshape(rows, x.shape), x)


def _spread(value: Node, items: list[Any], x: Node) -> Node:
    """value at the places of x that the items name, 0 elsewhere."""
    ranges = [_range(item, n, a) for a, (item, n) in enumerate(zip(items, x.shape, strict=True))]
    sizes = [(hi - lo + by - 1) // by for lo, hi, by, _ in ranges]
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
