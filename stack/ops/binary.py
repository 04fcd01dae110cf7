"""Elementwise operators of two operands, comparisons, and choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from hal.core.dtypes import DType
from hal.tile import build as tile
from hal.tile.node import Node, Type
from stack import ops as g
from stack.ops.operator import Attrs, Operator, OpKind
from stack.ops.rules import alike, need
from stack.ops.sharding import elementwise
from stack.ops.table import (
    ALL,
    FLOATS,
    INTS,
    NUMBERS,
    binary,
    by,
    comparison,
    define,
    exactly,
)

Pair = tuple[Node, Node]


def _div(n: Node, d: Node) -> Pair:
    by_b = g.div(d, n.srcs[1])
    return by_b, g.neg(g.mul(by_b, n))


def _pow(n: Node, d: Node) -> Pair:
    (a, b), zero = n.srcs, g.full_like(n, 0)
    slope = g.mul(d, g.mul(b, g.pow(a, g.sub(b, g.full_like(b, 1)))))
    flat = g.and_(g.eq(a, zero), g.le(zero, b))
    growth = g.mul(d, g.mul(n, g.log(a)))
    return g.where(g.eq(b, zero), zero, slope), g.where(flat, zero, growth)


def _extreme(is_lost: Callable[[Node, Node], Node], n: Node, d: Node) -> Pair:
    """Of the one of two whose other one is lost: `is_lost` says whether the first of two is."""
    a, b = n.srcs
    return _share(d, a, b, is_lost(a, b)), _share(d, a, b, is_lost(b, a))


def _share(d: Node, a: Node, b: Node, lost: Node) -> Node:
    """Nothing where this operand lost, half where both are equal."""
    half = g.mul(d, g.full_like(d, 0.5))
    return g.where(lost, g.full_like(d, 0), g.where(g.eq(a, b), half, d))


def _where(n: Node, d: Node) -> tuple[None, Node, Node]:
    zero = g.full_like(d, 0)
    return None, g.where(n.srcs[0], d, zero), g.where(n.srcs[0], zero, d)


def _chosen(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    alike(srcs, attrs, asked)
    need(srcs[0].dtype is DType.BOOL, "the condition must be bool")
    return srcs[1]


_BITS = INTS | {DType.BOOL}
_BASE, _DIVISOR = ((0.5, 2.0), None), (None, (0.5, 2.0))

add: Operator = binary(
    "add",
    NUMBERS,
    "a + b; integers wrap",
    by(np.add),
    lambda n, d: (d, d),
    sharding=elementwise((0, 1)),
)
sub: Operator = binary(
    "sub",
    NUMBERS,
    "a - b; integers wrap",
    by(np.subtract),
    lambda n, d: (d, g.neg(d)),
    sharding=elementwise((0, 1)),
)
mul: Operator = binary(
    "mul",
    NUMBERS,
    "a * b; integers wrap",
    by(np.multiply),
    lambda n, d: (g.mul(d, n.srcs[1]), g.mul(d, n.srcs[0])),
    sharding=elementwise((0,), (1,)),
)
div: Operator = binary(
    "div",
    FLOATS,
    "a / b",
    by(np.true_divide),
    _div,
    smooth=_DIVISOR,
    sharding=elementwise((0,)),
)
pow: Operator = binary(
    "pow",
    FLOATS,
    "a to the b, as C's pow",
    exactly(np.power),
    _pow,
    expensive=True,
    smooth=_BASE,
)
minimum: Operator = binary(
    "min",
    NUMBERS,
    "the lesser; NaN if one is NaN",
    by(np.minimum),
    partial(_extreme, lambda a, b: g.lt(b, a)),
)
maximum: Operator = binary(
    "max",
    NUMBERS,
    "the greater; NaN if one is NaN",
    by(np.maximum),
    partial(_extreme, lambda a, b: g.lt(a, b)),
)
and_: Operator = binary("and", _BITS, "bits set in both", by(np.bitwise_and))
or_: Operator = binary("or", _BITS, "bits set in either", by(np.bitwise_or))
xor: Operator = binary("xor", _BITS, "bits set in one", by(np.bitwise_xor))
shl: Operator = binary("shl", INTS, "a shifted b bits up; 0 from the width on", by(np.left_shift))
shr: Operator = binary("shr", INTS, "a shifted b bits down, with its sign", by(np.right_shift))
eq: Operator = comparison("eq", ALL, "a == b, as bool", by(np.equal))
ne: Operator = comparison("ne", ALL, "a != b, as bool", by(np.not_equal))
lt: Operator = comparison("lt", NUMBERS, "a < b, as bool", by(np.less))
le: Operator = comparison("le", NUMBERS, "a <= b, as bool", by(np.less_equal))
where: Operator = define(
    "where",
    OpKind.ELEMENTWISE,
    ALL,
    "a where the condition holds, else b",
    3,
    _chosen,
    by(np.where),
    _where,
    lower=lambda n, xs: tile.where(*xs),
    data=(1, 2),
    sharding=elementwise((1, 2)),
)
