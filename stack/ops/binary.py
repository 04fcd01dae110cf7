"""Elementwise operations of two operands, comparisons, and choice."""

from __future__ import annotations

import numpy as np

from hal.tile import build as tile
from hal.tile.node import Node
from stack.ir import build as g
from stack.ir.record import OpRecord
from stack.ops.table import by, elementwise, exactly

Pair = tuple[Node, Node]


def _add(n: Node, d: Node) -> Pair:
    return d, d


def _sub(n: Node, d: Node) -> Pair:
    return d, g.neg(d)


def _mul(n: Node, d: Node) -> Pair:
    a, b = n.srcs
    return g.mul(d, b), g.mul(d, a)


def _div(n: Node, d: Node) -> Pair:
    by_b = g.div(d, n.srcs[1])
    return by_b, g.neg(g.mul(by_b, n))


def _pow(n: Node, d: Node) -> Pair:
    (a, b), zero = n.srcs, g.full_like(n, 0)
    slope = g.mul(d, g.mul(b, g.pow(a, g.sub(b, g.full_like(b, 1)))))
    flat = g.and_(g.eq(a, zero), g.le(zero, b))
    growth = g.mul(d, g.mul(n, g.log(a)))
    return g.where(g.eq(b, zero), zero, slope), g.where(flat, zero, growth)


def _min(n: Node, d: Node) -> Pair:
    a, b = n.srcs
    return _share(d, a, b, g.lt(b, a)), _share(d, a, b, g.lt(a, b))


def _max(n: Node, d: Node) -> Pair:
    a, b = n.srcs
    return _share(d, a, b, g.lt(a, b)), _share(d, a, b, g.lt(b, a))


def _share(d: Node, a: Node, b: Node, lost: Node) -> Node:
    """Nothing where this operand lost, half where both are equal."""
    half = g.mul(d, g.full_like(d, 0.5))
    return g.where(lost, g.full_like(d, 0), g.where(g.eq(a, b), half, d))


def _where(n: Node, d: Node) -> tuple[None, Node, Node]:
    zero = g.full_like(d, 0)
    return None, g.where(n.srcs[0], d, zero), g.where(n.srcs[0], zero, d)


def _lower_where(n: Node, xs: tuple[Node, ...]) -> Node:
    return tile.where(*xs)


ARITHMETIC: tuple[OpRecord, ...] = (
    elementwise("add", "a + b; integers wrap", by(np.add), _add),
    elementwise("sub", "a - b; integers wrap", by(np.subtract), _sub),
    elementwise("mul", "a * b; integers wrap", by(np.multiply), _mul),
    elementwise("div", "a / b", by(np.true_divide), _div),
    elementwise("pow", "a to the b, as C's pow", exactly(np.power), _pow),
    elementwise("min", "the lesser; NaN if one is NaN", by(np.minimum), _min),
    elementwise("max", "the greater; NaN if one is NaN", by(np.maximum), _max),
)
BITWISE: tuple[OpRecord, ...] = (
    elementwise("and", "bits set in both", by(np.bitwise_and)),
    elementwise("or", "bits set in either", by(np.bitwise_or)),
    elementwise("xor", "bits set in one", by(np.bitwise_xor)),
    elementwise("shl", "a shifted b bits up; 0 from the width on", by(np.left_shift)),
    elementwise("shr", "a shifted b bits down, with its sign", by(np.right_shift)),
)
CHOICE: tuple[OpRecord, ...] = (
    elementwise("eq", "a == b, as bool", by(np.equal)),
    elementwise("ne", "a != b, as bool", by(np.not_equal)),
    elementwise("lt", "a < b, as bool", by(np.less)),
    elementwise("le", "a <= b, as bool", by(np.less_equal)),
    elementwise("where", "a where the condition holds, else b", by(np.where), _where, _lower_where),
)
