"""What type rules have in common: conditions that name what they refuse, and the elementwise
rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hal.core.dtypes import DType
from hal.tile.node import Type
from stack.ops.error import GraphError
from stack.ops.operator import Attrs

KINDS = ("sum", "prod", "min", "max")
"""How a reduction or a scan combines."""


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


def need_kind(kind: Any) -> None:
    """Raise GraphError unless `kind` is one of KINDS."""
    need(kind in KINDS, f"kind is one of {', '.join(KINDS)}")


def need_asked(asked: Type | None) -> Type:
    """The type that the caller must give because operands do not fix it."""
    if asked is None:
        raise GraphError("the result's type must be given")
    return asked


def axis_of(axis: int, rank: int) -> int:
    """A non-negative axis. Raises GraphError when there is no such axis."""
    if not -rank <= axis < rank:
        raise GraphError(f"axis {axis} is not one of {rank} axes")
    return axis % rank


def axes_of(axes: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Sorted, non-negative, different axes; None means all of them."""
    if axes is None:
        return tuple(range(rank))
    each = (axes,) if isinstance(axes, int) else axes
    return tuple(sorted({axis_of(a, rank) for a in each}))


# rules


def same(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    """The first operand's type."""
    return srcs[0]


def alike(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    """The one type of all operands."""
    for s in srcs:
        if s.shape != srcs[0].shape:
            raise GraphError("operands have different shapes; expand them first")
    return srcs[0]


def compared(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    """bool, in the one shape of all operands."""
    return alike(srcs, attrs, asked).with_dtype(DType.BOOL)
