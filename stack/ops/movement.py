"""Operators that only move elements. The compiler's loop nest lowers them as index arithmetic."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from functools import reduce
from itertools import accumulate, pairwise

import numpy as np

from hal.core.dtypes import DType
from hal.tile.node import Node, Type, toposort
from hal.tile.numeric import NUMPY
from hal.tile.size import is_fixed
from stack import ops as g
from stack.ops.error import GraphError
from stack.ops.numeric import canonical
from stack.ops.operator import (
    Attrs,
    Decompose,
    Gradient,
    NDArray,
    Operator,
    OpKind,
    Reference,
    Rule,
)
from stack.ops.rules import axes_of, axis_of, need, need_asked, need_axes, need_axis, same
from stack.ops.sharding import Link, Sharding, Share, elementwise, linear_in, unchanged_axes
from stack.ops.table import ALL, NUMBERS, define, doubled, rounded

Arrays = tuple[NDArray, ...]


def _permute_gradient(n: Node, d: Node) -> tuple[Node]:
    """Sums of what was itself brought into this order are made in the order that it had."""
    made: dict[Node, Node | None] = {}
    for x in toposort((d,), lambda x: x.srcs if x.op == "add" else ()):
        made[x] = x.srcs[0] if x.op == "permute" and x["perm"] == n["perm"] else None
        terms = [t for s in x.srcs if (t := made[s]) is not None] if x.op == "add" else []
        if len(terms) == 2:
            made[x] = g.add(*terms)
    found = made[d]
    return (permute(d, np.argsort(n["perm"]).tolist()) if found is None else found,)


def _slice(n: Node, xs: Arrays) -> NDArray:
    bounds = zip(n["start"], n["stop"], n["step"], strict=True)
    return xs[0][tuple(builtins.slice(*b) for b in bounds)]


def _pad(n: Node, xs: Arrays) -> NDArray:
    result = np.full(n.shape, n["value"], NUMPY[n.dtype])
    inner = zip(n["lo"], xs[0].shape, strict=True)
    result[tuple(builtins.slice(lo, lo + size) for lo, size in inner)] = xs[0]
    return result


def _places(n: Node, count: int, size: int) -> NDArray:
    """[window, element] to the position along the axis."""
    starts = np.arange(count)[:, None] * int(n["stride"])
    return np.asarray(starts + np.arange(size) * int(n["dilation"]))


def _window(n: Node, xs: Arrays) -> NDArray:
    axis: int = n["axis"]
    return np.take(xs[0], _places(n, *n.shape[axis : axis + 2]), axis)


def _overlap_add(n: Node, xs: Arrays) -> NDArray:
    (x,), axis = xs, n["axis"]
    total = np.zeros((n["length"], *x.shape[:axis], *x.shape[axis + 2 :]), doubled(x).dtype)
    windows = np.moveaxis(x, (axis, axis + 1), (0, 1))
    np.add.at(total, _places(n, *x.shape[axis : axis + 2]), windows)
    return rounded(np.moveaxis(total, 0, axis), n.dtype)


def _unexpand(n: Node, d: Node) -> tuple[Node]:
    grown = zip(n.srcs[0].shape, n.shape, strict=True)
    return (g.reduce("sum", d, [i for i, (a, b) in enumerate(grown) if a != b]),)


def _unslice(n: Node, d: Node) -> tuple[Node]:
    """Zeros between the elements where the step was more than 1, then zeros around."""
    (x,) = n.srcs
    if 0 in n.shape:
        return (g.full_like(x, 0),)
    for axis, step in enumerate(n["step"]):
        d = dilate(d, axis, step)
    hi = [size - lo - m for size, lo, m in zip(x.shape, n["start"], d.shape, strict=True)]
    return (pad(d, n["start"], hi),)


def _unpad(n: Node, d: Node) -> tuple[Node]:
    lo = n["lo"]
    return (slice(d, lo, [a + m for a, m in zip(lo, n.srcs[0].shape, strict=True)]),)


def _overwrite(n: Node, xs: Arrays) -> NDArray:
    whole = xs[0].copy()
    whole[tuple(np.s_[lo : lo + m] for lo, m in zip(n["start"], xs[1].shape, strict=True))] = xs[1]
    return whole


def _beside(n: Node) -> Node:
    """A choice between the part, padded, and the whole."""
    x, part = n.srcs
    lo = n["start"]
    hi = [size - at - m for size, at, m in zip(x.shape, lo, part.shape, strict=True)]
    inside = pad(g.full(part.shape, True, DType.BOOL), lo, hi, False)
    return g.where(inside, pad(part, lo, hi), x)


def _unoverwrite(n: Node, d: Node) -> tuple[Node, Node]:
    lo, part = n["start"], n.srcs[1]
    stop = [at + m for at, m in zip(lo, part.shape, strict=True)]
    return overwrite(d, g.full_like(part, 0), lo), slice(d, lo, stop)


def _unconcat(n: Node, d: Node) -> tuple[Node, ...]:
    axis = n["axis"]
    ends = accumulate((s.shape[axis] for s in n.srcs), initial=0)
    return tuple(slice_axis(d, axis, lo, hi) for lo, hi in pairwise(ends))


# type rules


def _refilled(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    (x,), result = srcs, need_asked(asked)
    if x.size != result.size or any(d < 0 for d in result.shape):
        raise GraphError(f"{x.size} elements do not fill shape {result.shape}")
    return x.with_shape(result.shape)


def _grown(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    (x,), shape = srcs, need_asked(asked).shape
    if len(shape) != len(x.shape):
        raise GraphError(f"shape {shape} has another rank; reshape first")
    for a, b in zip(x.shape, shape, strict=True):
        if b < 0 or a not in (1, b):
            raise GraphError(f"cannot repeat to shape {shape}: only axes of size 1 can grow")
    return x.with_shape(shape)


def _permuted(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    (x,), perm = srcs, attrs["perm"]
    if sorted(perm) != list(range(len(x.shape))):
        raise GraphError(f"perm {perm} is not a permutation of {len(x.shape)} axes")
    return x.with_shape(x.shape[p] for p in perm)


def _sliced(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    (x,), start, stop, step = srcs, attrs["start"], attrs["stop"], attrs["step"]
    if not len(x.shape) == len(start) == len(stop) == len(step):
        raise GraphError("start, stop and step need one entry for each axis")
    for n, lo, hi, by in zip(x.shape, start, stop, step, strict=True):
        if not (0 <= lo <= hi <= n and by > 0):
            raise GraphError(f"need 0 <= start <= stop <= {n} and step > 0; got {lo}:{hi}:{by}")
    return x.with_shape(
        (hi - lo + by - 1) // by for lo, hi, by in zip(start, stop, step, strict=True)
    )


def _flipped(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    need_axes(attrs["axes"], len(srcs[0].shape))
    return srcs[0]


def _padded(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    (x,), lo, hi = srcs, attrs["lo"], attrs["hi"]
    if not (len(x.shape) == len(lo) == len(hi) and min((*lo, *hi), default=0) >= 0):
        raise GraphError(f"lo {lo} and hi {hi} need one non-negative entry for each axis")
    return x.with_shape(n + a + b for n, a, b in zip(x.shape, lo, hi, strict=True))


def _windows(size: int, attrs: Attrs) -> int:
    """How many windows an axis of so many elements has. Raises GraphError where it has none."""
    wide, stride, dilation = (int(attrs[name]) for name in ("size", "stride", "dilation"))
    need(min(wide, stride, dilation) > 0, "size, stride and dilation must be positive")
    span = (wide - 1) * dilation + 1
    if span > size:
        raise GraphError(f"a window of {span} elements does not fit into an axis of {size}")
    return (size - span) // stride + 1


def _windowed(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    (x,), axis = srcs, attrs["axis"]
    need_axis(axis, len(x.shape))
    pair = (_windows(x.shape[axis], attrs), attrs["size"])
    return x.with_shape((*x.shape[:axis], *pair, *x.shape[axis + 1 :]))


def _overlapped(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    (x,), axis, length = srcs, attrs["axis"], attrs["length"]
    need_axis(axis, len(x.shape) - 1)
    pair = (_windows(length, {**attrs, "size": x.shape[axis + 1]}), x.shape[axis + 1])
    if x.shape[axis : axis + 2] != pair:
        raise GraphError(f"an axis of {length} has {pair[0]} such windows, not {x.shape[axis]}")
    return x.with_shape((*x.shape[:axis], length, *x.shape[axis + 2 :]))


def _overwritten(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    (x, part), start = srcs, attrs["start"]
    if not len(x.shape) == len(part.shape) == len(start):
        raise GraphError(f"start {start} needs one entry for each axis of x and of the part")
    for size, lo, n in zip(x.shape, start, part.shape, strict=True):
        if not 0 <= lo <= lo + n <= size:
            raise GraphError(f"the elements {lo}:{lo + n} are not within an axis of {size}")
    return x


def _joined(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    axis = attrs["axis"]
    need(len(srcs) > 0, "needs at least one operand")
    first = srcs[0]
    need_axis(axis, len(first.shape))
    if len({len(s.shape) for s in srcs}) != 1:
        raise GraphError("shapes have different numbers of axes")
    rest = [s.shape[:axis] + s.shape[axis + 1 :] for s in srcs]
    if any(other != rest[0] for other in rest):  # equal sizes may be other expressions
        raise GraphError(f"shapes differ outside axis {axis}")
    total = sum(s.shape[axis] for s in srcs)
    return first.with_shape((*first.shape[:axis], total, *first.shape[axis + 1 :]))


# rows


_SHIFTS = 16
"""Shifted copies up to which windows are added up by them; more are updates of zeros."""


def _shifted_or_scattered(n: Node) -> Node:
    """Few elements of a window are shifted copies that are added; many are updates of zeros."""
    if overlaps_by_strides(n):
        return cropped_overlap(n, 0, n["length"])
    (x,), axis, size = n.srcs, n["axis"], n.srcs[0].shape[n["axis"] + 1]
    wide = g.cast(x, n.dtype.computed_in)
    zeros = g.full(n.shape, 0, wide.dtype)
    if size <= _SHIFTS:
        total = zeros
        for k in range(size):
            one = slice_axis(wide, axis + 1, k, k + 1)
            one = reshape(one, (*x.shape[: axis + 1], *x.shape[axis + 2 :]))
            one = dilate(one, axis, n["stride"])
            before = k * n["dilation"]
            one = _pad_axis(one, axis, before, n["length"] - before - one.shape[axis])
            total = g.add(total, one)
    else:
        shape = x.shape[axis : axis + 2]
        first = g.mul(g.arange(shape[0]), g.full(shape[:1], n["stride"], DType.I64))
        then = g.mul(g.arange(shape[1]), g.full(shape[1:], n["dilation"], DType.I64))
        at = g.add(
            expand(reshape(first, (shape[0], 1)), shape),
            expand(reshape(then, (1, shape[1])), shape),
        )
        total = g.scatter("sum", zeros, at, wide, axis)
    return g.cast(total, n.dtype)


def overlaps_by_strides(n: Node) -> bool:
    """Whether an `overlap_add` is a sum of few copies of whole strides of its windows; of a length
    that is data where what its last stride has is known."""
    taps, stride = n.srcs[0].shape[n["axis"] + 1], n["stride"]
    if not (is_fixed(taps) and is_fixed(stride) and is_fixed(n["length"] % stride)):
        return False
    return bool(taps <= (_SHIFTS - 1) * stride and stride > 1 == n["dilation"])


def cropped_overlap(n: Node, start: int, stop: int) -> Node:
    """The elements from `start` to `stop` of an `overlap_add` that is one by strides.

    Windows are cut into pieces of a stride, of which the first begins where a stride of the result
    does; the pieces that are at one place of their windows are then neighbours of the result.
    """
    (x,), axis, stride = n.srcs, n["axis"], n["stride"]
    (*lead, windows), (taps, *behind) = x.shape[: axis + 1], x.shape[axis + 1 :]
    before = -start % stride
    count = -(-(taps + before) // stride)
    first, last = (start + before) // stride, (stop + before + stride - 1) // stride
    wide = g.cast(x, n.dtype.computed_in)
    wide = _pad_axis(wide, axis + 1, before, count * stride - taps - before)
    pieces = reshape(wide, (*lead, windows, count, stride, *behind))
    moved = []
    for t in range(count):
        piece = slice_axis(pieces, axis + 1, t, t + 1)
        piece = reshape(piece, (*lead, windows, stride, *behind))
        # The last piece of the last window ends within a stride behind what is asked for.
        piece = _pad_axis(piece, axis, t, count + 1 - t)
        moved.append(slice_axis(piece, axis, first, last))
    joined = reshape(reduce(g.add, moved), (*lead, (last - first) * stride, *behind))
    return g.cast(slice_axis(joined, axis, 0, stop - start), n.dtype)


def _pad_axis(x: Node, axis: int, before: int, after: int) -> Node:
    lo, hi = (
        tuple(edge if i == axis else 0 for i in range(len(x.shape))) for edge in (before, after)
    )
    return pad(x, lo, hi)


def _moves(
    name: str,
    meaning: str,
    rule: Rule,
    reference: Reference,
    gradient: Gradient,
    *attrs: str,
    arity: int | None = 1,
    sharding: Sharding | None = None,
    decompose: Decompose | None = None,
) -> Operator:
    kind, marks = OpKind.MOVEMENT, frozenset({"tag"} if name == "contiguous" else ())
    more = {"attrs": frozenset(attrs), "marks": marks, "sharding": sharding or _KEEPING}
    more["decompose"] = decompose
    return define(name, kind, ALL, meaning, arity, rule, reference, gradient, **more)


_KEEPING = Sharding(unchanged_axes, linear_in((0,)))


def _expanded_links(n: Node) -> list[Link]:
    sizes = zip(n.srcs[0].shape, n.shape, strict=True)
    return [Link((axis if a == b else None,), axis) for axis, (a, b) in enumerate(sizes)]


def _kept_links(n: Node) -> list[Link]:
    """The axes that a slice or padding leaves alone."""
    cut = zip(n.srcs[0].shape, n.shape, strict=True)
    return [Link((axis,), axis) for axis, (a, b) in enumerate(cut) if a == b]


def _other_links(n: Node) -> list[Link]:
    """Of a window and its adjoint all axes but the one that is cut, which is one or two."""
    (x,), axis = n.srcs, n["axis"]
    more, less = (2, 1) if len(n.shape) > len(x.shape) else (1, 2)
    before = [Link((i,), i) for i in range(axis)]
    return [*before, *(Link((i,), i - less + more) for i in range(axis + less, len(x.shape)))]


def _cut(n: Node, srcs: tuple[Node, ...], type: Type, share: Share | None) -> Node:
    """A slice that leaves the axis alone of which a rank has a part."""
    (x,), whole = srcs, n.srcs[0].shape
    stop = [x.shape[i] if x.shape[i] != a else n["stop"][i] for i, a in enumerate(whole)]
    return slice(x, n["start"], stop, n["step"])


_RESHAPE = _moves(
    "reshape",
    "the elements in row-major order under another shape",
    _refilled,
    lambda n, xs: xs[0].reshape(n.shape),
    lambda n, d: (reshape(d, n.srcs[0].shape),),
    sharding=Sharding(lambda n: (), linear_in((0,)), regroups=True),
)
_PERMUTE = _moves(
    "permute",
    "axis i of the result is axis perm[i] of x",
    _permuted,
    lambda n, xs: xs[0].transpose(n["perm"]),
    _permute_gradient,
    "perm",
    sharding=Sharding(
        lambda n: [Link((p,), axis) for axis, p in enumerate(n["perm"])], linear_in((0,))
    ),
)
_EXPAND = _moves(
    "expand",
    "axes of size 1 repeated",
    _grown,
    lambda n, xs: np.broadcast_to(xs[0], n.shape),
    _unexpand,
    sharding=Sharding(_expanded_links, linear_in((0,))),
)
_SLICE = _moves(
    "slice",
    "x[start:stop:step] on every axis",
    _sliced,
    _slice,
    _unslice,
    "start",
    "stop",
    "step",
    sharding=Sharding(_kept_links, linear_in((0,)), _cut),
)
_FLIP = _moves(
    "flip",
    "x with axes reversed",
    _flipped,
    lambda n, xs: np.flip(xs[0], n["axes"]),
    lambda n, d: (flip(d, n["axes"]),),
    "axes",
    sharding=Sharding(
        lambda n: [Link((axis,), axis) for axis in range(len(n.shape)) if axis not in n["axes"]],
        linear_in((0,)),
    ),
)
_PAD = _moves(
    "pad",
    "x surrounded by `value`",
    _padded,
    _pad,
    _unpad,
    "lo",
    "hi",
    "value",
    sharding=Sharding(
        _kept_links, lambda n: ((0,),) if n.dtype.is_float and n["value"] == 0 else ()
    ),
)
_WINDOW = _moves(
    *(
        "window",
        "along an axis windows of size elements `dilation` apart, one beginning each stride",
    ),
    _windowed,
    _window,
    lambda n, d: (
        overlap_add(d, n["axis"], n.srcs[0].shape[n["axis"]], n["stride"], n["dilation"]),
    ),
    "axis",
    "size",
    "stride",
    "dilation",
    sharding=Sharding(_other_links, linear_in((0,))),
)
_CONCAT = _moves(
    "concat",
    "the operands one after the other along an axis",
    _joined,
    lambda n, xs: np.concatenate(xs, n["axis"]),
    _unconcat,
    "axis",
    arity=None,
    sharding=Sharding(
        lambda n: [Link((i,) * len(n.srcs), i) for i in range(len(n.shape)) if i != n["axis"]],
        lambda n: (tuple(range(len(n.srcs))),) if n.dtype.is_float else (),
    ),
)
_OVERWRITE = _moves(
    "overwrite",
    "x with the second operand in the place of the elements from `start` on",
    _overwritten,
    _overwrite,
    _unoverwrite,
    "start",
    arity=2,
    sharding=Sharding(
        lambda n: [
            Link((axis, axis), axis)
            for axis, (size, m) in enumerate(zip(n.shape, n.srcs[1].shape, strict=True))
            if size == m
        ],
        linear_in((0, 1)),
    ),
    decompose=_beside,
)
_CONTIGUOUS = _moves(
    "contiguous",
    "x as a buffer of its own",
    same,
    lambda n, xs: np.ascontiguousarray(xs[0]).reshape(n.shape),
    lambda n, d: (d,),
    sharding=elementwise((0,)),
)
_OVERLAP_ADD = define(
    "overlap_add",
    OpKind.CONTRACT,
    NUMBERS,
    "windows, as `window` gives them, added up where they came from; f16 and bf16 in f32",
    1,
    _overlapped,
    _overlap_add,
    lambda n, d: (
        window(d, n["axis"], n.srcs[0].shape[n["axis"] + 1], n["stride"], n["dilation"]),
    ),
    attrs=frozenset({"axis", "length", "stride", "dilation"}),
    decompose=_shifted_or_scattered,
    sharding=Sharding(_other_links, linear_in((0,))),
)


# constructors


def reshape(x: Node, shape: Sequence[int]) -> Node:
    """x's elements in row-major order under another shape of the same size."""
    wanted = tuple(shape)
    return x if wanted == x.shape else _RESHAPE(x, asked=x.type.with_shape(wanted))


def permute(x: Node, perm: Sequence[int]) -> Node:
    """Axis i of the result is axis perm[i] of x."""
    order = tuple(axis_of(p, len(x.shape)) for p in perm)
    return x if order == tuple(range(len(x.shape))) else _PERMUTE(x, perm=order)


def transpose(x: Node, a: int = -2, b: int = -1) -> Node:
    """x with two axes exchanged."""
    order = list(range(len(x.shape)))
    i, j = axis_of(a, len(order)), axis_of(b, len(order))
    order[i], order[j] = j, i
    return permute(x, order)


def expand(x: Node, shape: Sequence[int]) -> Node:
    """x with axes of size 1 repeated; the shape has x's rank."""
    wanted = tuple(shape)
    return x if wanted == x.shape else _EXPAND(x, asked=x.type.with_shape(wanted))


def broadcast(x: Node, shape: Sequence[int]) -> Node:
    """x repeated to a shape by numpy's rules: a reshape that adds leading axes, then an expand."""
    lead = len(shape) - len(x.shape)
    if lead < 0:
        raise GraphError(f"broadcast: {x.type} has more axes than {tuple(shape)}")
    return expand(reshape(x, (1,) * lead + x.shape), shape)


def slice(
    x: Node, start: Sequence[int], stop: Sequence[int], step: Sequence[int] | None = None
) -> Node:
    """x[start:stop:step] on every axis; 0 <= start <= stop <= size, step > 0 (1 without one)."""
    by = (1,) * len(x.shape) if step is None else tuple(step)
    lo, hi = tuple(start), tuple(stop)
    if lo == (0,) * len(x.shape) and hi == x.shape and by == (1,) * len(x.shape):
        return x
    return _SLICE(x, start=lo, stop=hi, step=by)


def slice_axis(x: Node, axis: int, start: int, stop: int, step: int = 1) -> Node:
    """A slice of one axis."""
    a, ones = axis_of(axis, len(x.shape)), (1,) * len(x.shape)
    lo = tuple(start if i == a else 0 for i in range(len(ones)))
    hi = tuple(stop if i == a else n for i, n in enumerate(x.shape))
    return slice(x, lo, hi, (*ones[:a], step, *ones[a + 1 :]))


def flip(x: Node, axes: int | Sequence[int]) -> Node:
    """x with these axes reversed."""
    each = axes_of(axes, len(x.shape))
    return _FLIP(x, axes=each) if each else x


def pad(x: Node, lo: Sequence[int], hi: Sequence[int], value: float | int | bool = 0) -> Node:
    """x surrounded by `value`: lo[i] elements before and hi[i] after on axis i."""
    if not any((*lo, *hi)) and len(lo) == len(hi) == len(x.shape):
        return x
    return _PAD(x, lo=tuple(lo), hi=tuple(hi), value=canonical(value, x.dtype))


def dilate(x: Node, axis: int, step: int) -> Node:
    """x with step - 1 zeros between neighbours along the axis."""
    a = axis_of(axis, len(x.shape))
    if step == 1 or x.shape[a] == 1:
        return x
    before, size, after = x.shape[:a], x.shape[a], x.shape[a + 1 :]
    apart = reshape(x, (*before, size, 1, *after))
    zeros = tuple(step - 1 if i == a + 1 else 0 for i in range(len(apart.shape)))
    joined = reshape(pad(apart, (0,) * len(zeros), zeros), (*before, size * step, *after))
    return slice_axis(joined, a, 0, (size - 1) * step + 1)


def window(x: Node, axis: int, size: int, stride: int = 1, dilation: int = 1) -> Node:
    """The windows of an axis: in its place the number of a window, then `size` elements of it, each
    `dilation` after the one before; a window begins `stride` after the one before."""
    a = axis_of(axis, len(x.shape))
    return _WINDOW(x, axis=a, size=size, stride=stride, dilation=dilation)


def overlap_add(x: Node, axis: int, length: int, stride: int = 1, dilation: int = 1) -> Node:
    """The adjoint of `window`: the windows that two neighbouring axes hold, the second one their
    elements, added up where they came from in an axis of `length`."""
    a = axis_of(axis, len(x.shape) - 1)
    return _OVERLAP_ADD(x, axis=a, length=length, stride=stride, dilation=dilation)


def concat(parts: Sequence[Node], axis: int) -> Node:
    """The parts one after the other along an axis."""
    if len(parts) == 1:
        return parts[0]
    return _CONCAT(*parts, axis=axis_of(axis, len(parts[0].shape)) if parts else axis)


def overwrite(x: Node, part: Node, start: Sequence[int]) -> Node:
    """x with the part, of as many axes, in the place of the elements from `start` on."""
    if not part.type.size:
        return x
    return part if part.shape == x.shape else _OVERWRITE(x, part, start=tuple(start))


def contiguous(x: Node) -> Node:
    """x, as a buffer of its own."""
    return _CONTIGUOUS(x)
