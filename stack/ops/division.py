"""Division that rounds down, and its remainder, from truncating division."""

from __future__ import annotations

import numpy as np

from hal.tile import build as tile
from hal.tile.node import Node
from stack import ops as g
from stack.ops.operator import Operator
from stack.ops.table import NUMBERS, binary, by


def _negative(x: Node) -> Node:
    return tile.binary("lt", x, 0)


def _off(r: Node, b: Node) -> Node:
    """Where truncation and rounding down differ: a remainder whose sign is not the divisor's."""
    return tile.binary(
        "and", tile.binary("ne", r, 0), tile.binary("xor", _negative(r), _negative(b))
    )


def _lower_mod(n: Node, xs: tuple[Node, ...]) -> Node:
    a, b = xs
    r = tile.binary("rem", a, b)
    if n.dtype.kind == "u":
        return r
    return tile.where(_off(r, b), tile.add(r, b), r)


def _lower_floordiv(n: Node, xs: tuple[Node, ...]) -> Node:
    a, b = xs
    if n.dtype.kind == "u":
        return tile.binary("div", a, b)
    r = tile.binary("rem", a, b)
    if n.dtype.is_float:
        # (a - r) is nearly a multiple of b, so the quotient needs rounding to the nearest whole
        # number.
        q = tile.binary("div", tile.sub(a, r), b)
        whole = tile.unary("round", tile.where(_off(r, b), tile.sub(q, 1), q))
        return tile.where(tile.binary("eq", b, 0), tile.binary("div", a, b), whole)
    q = tile.binary("div", a, b)
    return tile.where(_off(r, b), tile.sub(q, 1), q)


_DIVISOR = (None, (0.5, 2.0))

floordiv: Operator = binary(
    "floordiv",
    NUMBERS,
    "the quotient rounded down; integers by zero give 0, floats by zero a / b",
    by(np.floor_divide),
    lower=_lower_floordiv,
    smooth=_DIVISOR,
)
mod: Operator = binary(
    "mod",
    NUMBERS,
    "a - b * floor(a / b), with b's sign; integers by zero give 0, floats by zero NaN; the sign of "
    "a zero is open",
    by(np.remainder),
    lambda n, d: (d, g.neg(g.mul(d, g.floordiv(*n.srcs)))),
    lower=_lower_mod,
    smooth=_DIVISOR,
)
