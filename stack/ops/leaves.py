"""Operators without operands, and constants of a shape."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hal.core.dtypes import DType
from hal.tile.node import Node, Type, node
from hal.tile.numeric import NUMPY
from hal.tile.size import is_symbolic
from stack import ops as g
from stack.ops.numeric import canonical
from stack.ops.operator import Attrs, OpKind
from stack.ops.rules import need, need_asked
from stack.ops.sharding import Link, Sharding, same_attributes
from stack.ops.table import ALL, NUMBERS, define, rounded

Number = float | int | bool


def _scalar(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    result = need_asked(asked)
    need(result.shape == (), "a constant has no axes; expand it")
    kind = float if result.dtype.is_float else int if result.dtype.is_int else bool
    need(
        type(attrs["value"]) is kind or is_symbolic(attrs["value"]),
        f"the value of a {result.dtype.short} is a {kind.__name__}",
    )
    return result


def _line(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    result = need_asked(asked)
    need(len(result.shape) == 1, "has exactly one axis")
    need(result.dtype in NUMBERS, "counts in a number type")
    return result


define(
    "input",
    OpKind.LEAF,
    ALL,
    "argument number `slot` of the graph",
    0,
    lambda srcs, attrs, asked: need_asked(asked),
    lambda n, xs: xs[0],
    attrs=frozenset({"slot"}),
)
_CONST = define(
    "const",
    OpKind.LEAF,
    ALL,
    "the scalar `value`",
    0,
    _scalar,
    lambda n, xs: np.array(n["value"], NUMPY[n.dtype]),
    attrs=frozenset({"value"}),
)


_ARANGE = define(
    "arange",
    OpKind.LEAF,
    NUMBERS,
    "0, 1, ..., n-1 as i64, cast to the element type",
    0,
    _line,
    lambda n, xs: rounded(np.arange(n.shape[0], dtype=np.int64), n.dtype),
    sharding=Sharding(
        lambda n: [Link((), 0)],
        local=lambda n, srcs, type, share: (
            same_attributes(n, srcs, type, share)
            if share is None
            else g.cast(share.positions(), n.dtype)
        ),
    ),
)


def input(slot: int, type: Type) -> Node:
    """The argument number `slot` of the graph."""
    return node("input", type, slot=slot)  # of any type: there is nothing to check


def const(value: Number, dtype: DType) -> Node:
    """A scalar, rounded to the element type."""
    return _CONST(asked=Type((), dtype), value=canonical(value, dtype))


def arange(n: int, dtype: DType = DType.I64) -> Node:
    """0, 1, ..., n-1 converted to the element type."""
    return _ARANGE(asked=Type((n,), dtype))


def full(shape: Sequence[int], value: Number, dtype: DType) -> Node:
    """A constant repeated to a shape."""
    return g.broadcast(const(value, dtype), shape)


def full_like(x: Node, value: Number) -> Node:
    """A constant of x's shape and element type."""
    return full(x.shape, value, x.dtype)
