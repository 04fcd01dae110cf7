"""Type rules of operations that only move elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hal.tile.node import Type
from stack.ir.error import GraphError

Attrs = Mapping[str, Any]


def need(condition: bool, message: str) -> None:
    """Raise GraphError with the message unless the condition holds."""
    if not condition:
        raise GraphError(message)


def need_axis(axis: Any, rank: int) -> None:
    """Raise GraphError unless `axis` names one of `rank` axes."""
    if not (isinstance(axis, int) and 0 <= axis < rank):
        raise GraphError(f"axis {axis} is not one of {rank} axes")


def need_axes(axes: Any, rank: int) -> None:
    """Raise GraphError unless `axes` are sorted different axes."""
    for a in axes:
        need_axis(a, rank)
    if list(axes) != sorted(set(axes)):
        raise GraphError(f"axes {axes} are not sorted and different")


def need_asked(asked: Type | None) -> Type:
    """The type that the caller must give because operands do not fix it."""
    if asked is None:
        raise GraphError("the result's type must be given")
    return asked


def reshape(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    (x,), result = srcs, need_asked(asked)
    if x.size != result.size or min(result.shape, default=0) < 0:
        raise GraphError(f"{x.size} elements do not fill shape {result.shape}")
    return x.with_shape(result.shape)


def expand(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    (x,), shape = srcs, need_asked(asked).shape
    if len(shape) != len(x.shape):
        raise GraphError(f"shape {shape} has another rank; reshape first")
    for a, b in zip(x.shape, shape, strict=True):
        if b < 0 or a not in (1, b):
            raise GraphError(f"cannot repeat to shape {shape}: only axes of size 1 can grow")
    return x.with_shape(shape)


def permute(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    (x,), perm = srcs, attrs["perm"]
    if sorted(perm) != list(range(len(x.shape))):
        raise GraphError(f"perm {perm} is not a permutation of {len(x.shape)} axes")
    return x.with_shape(x.shape[p] for p in perm)


def slice_(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    (x,), start, stop, step = srcs, attrs["start"], attrs["stop"], attrs["step"]
    if not len(x.shape) == len(start) == len(stop) == len(step):
        raise GraphError("start, stop and step need one entry for each axis")
    for n, lo, hi, by in zip(x.shape, start, stop, step, strict=True):
        if not (0 <= lo <= hi <= n and by > 0):
            raise GraphError(f"need 0 <= start <= stop <= {n} and step > 0; got {lo}:{hi}:{by}")
    return x.with_shape(
        (hi - lo + by - 1) // by for lo, hi, by in zip(start, stop, step, strict=True)
    )


def flip(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    need_axes(attrs["axes"], len(srcs[0].shape))
    return srcs[0]


def pad(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    (x,), lo, hi = srcs, attrs["lo"], attrs["hi"]
    if not (len(x.shape) == len(lo) == len(hi) and min((*lo, *hi), default=0) >= 0):
        raise GraphError(f"lo {lo} and hi {hi} need one non-negative entry for each axis")
    return x.with_shape(n + a + b for n, a, b in zip(x.shape, lo, hi, strict=True))


def windows(size: int, attrs: Attrs) -> int:
    """How many windows an axis of so many elements has. Raises GraphError where it has none."""
    wide, stride, dilation = (int(attrs[name]) for name in ("size", "stride", "dilation"))
    need(min(wide, stride, dilation) > 0, "size, stride and dilation must be positive")
    span = (wide - 1) * dilation + 1
    if span > size:
        raise GraphError(f"a window of {span} elements does not fit into an axis of {size}")
    return (size - span) // stride + 1


def window(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    (x,), axis = srcs, attrs["axis"]
    need_axis(axis, len(x.shape))
    pair = (windows(x.shape[axis], attrs), attrs["size"])
    return x.with_shape((*x.shape[:axis], *pair, *x.shape[axis + 1 :]))


def overlap_add(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    (x,), axis, length = srcs, attrs["axis"], attrs["length"]
    need_axis(axis, len(x.shape) - 1)
    pair = (windows(length, {**attrs, "size": x.shape[axis + 1]}), x.shape[axis + 1])
    if x.shape[axis : axis + 2] != pair:
        raise GraphError(f"an axis of {length} has {pair[0]} such windows, not {x.shape[axis]}")
    return x.with_shape((*x.shape[:axis], length, *x.shape[axis + 2 :]))


def concat(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    axis = attrs["axis"]
    need(len(srcs) > 0, "needs at least one operand")
    first = srcs[0]
    need_axis(axis, len(first.shape))
    rest = {s.shape[:axis] + s.shape[axis + 1 :] for s in srcs if len(s.shape) == len(first.shape)}
    if len(rest) != 1 or len({len(s.shape) for s in srcs}) != 1:
        raise GraphError(f"shapes differ outside axis {axis}")
    total = sum(s.shape[axis] for s in srcs)
    return first.with_shape((*first.shape[:axis], total, *first.shape[axis + 1 :]))


def same(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    return srcs[0]
