"""Simplifications of elementwise operations that keep every bit of the result, NaN's own bits
excepted.

x + 0.0 stays (it turns -0.0 into 0.0) unless x cannot be -0.0; x * 0.0 stays (x may be NaN);
nothing is reassociated.
"""

from __future__ import annotations

from math import frexp

import numpy as np

from hal.core.dtypes import DType
from hal.tile import numeric
from hal.tile.node import Node, node
from hal.tile.numeric import bounds
from hal.tile.size import is_symbolic
from stack import ops as g
from stack.ir.pattern import capture, constant, number_of, op
from stack.ir.rewrite import Rows
from stack.ops import OPS, same_name

X, A, B, C = (capture(name) for name in "xabc")
ONE, ZERO = constant(1), constant(0)
INTS, FLOATS, EXACT = "iu", "f", "iub"

_NEVER_MINUS_ZERO = ("abs", "exp")


def _x(x: Node) -> Node:
    return x


def _zero(n: Node) -> Node:
    return g.full_like(n, 0)


def _never_minus_zero(x: Node) -> bool:
    square = x.op == "mul" and x.srcs[0] is x.srcs[1]
    return square or x.op in _NEVER_MINUS_ZERO or (x.op == "cast" and x.srcs[0].dtype.is_int)


def _power_of_two(n: Node, x: Node, c: Node) -> Node | None:
    """x / c is exactly x * (1 / c) if 1 / c has no rounding and is a normal number."""
    if is_symbolic(_number(c)):
        return None
    value = float(_number(c))
    most = 2.0 ** min(14, n.dtype.bias - 1)
    if value == 0 or abs(frexp(value)[0]) != 0.5 or not 1 / most <= abs(value) <= most:
        return None
    return g.mul(x, g.full_like(x, 1 / value))


def _all_bits(n: Node) -> bool:
    """A constant with every bit set: True, -1 or the greatest unsigned value."""
    value = number_of(n)
    return value is not None and value == (-1 if n.dtype.kind == "i" else bounds(n.dtype)[1])


ONES = constant(name="ones", when=_all_bits)
LAWS: Rows = (
    (op("add", X, ZERO, kinds=INTS, commutative=True), _x),
    (op("add", X, constant(-0.0), kinds=FLOATS, commutative=True), _x),
    (op("add", capture("x", when=_never_minus_zero), ZERO, commutative=True), _x),
    (op("add", A, op("neg", B), commutative=True), lambda a, b: g.sub(a, b)),
    (op("sub", X, ZERO), _x),
    (op("sub", A, op("neg", B)), lambda a, b: g.add(a, b)),
    (op(("sub", "xor"), X, X, name="n", kinds=EXACT), lambda n, x: _zero(n)),
    (op("mul", X, ONE, commutative=True), _x),
    (op("mul", X, constant(-1), commutative=True), lambda x: g.neg(x)),
    (op("mul", capture(), ZERO, name="n", kinds=INTS, commutative=True), _zero),
    (op(("div", "pow"), X, ONE), _x),
    (op("floordiv", X, ONE, kinds=INTS), _x),
    (op("mod", capture(), ONE, name="n", kinds=INTS), _zero),
    (op("div", X, constant(name="c"), name="n"), _power_of_two),
    (op("pow", capture(), ZERO, name="n"), lambda n: g.full_like(n, 1)),
    (op("pow", X, constant(2)), lambda x: g.mul(x, x)),
    (op("pow", X, constant(-1)), lambda x: g.recip(x)),
    (op(("min", "max", "and", "or"), X, X), _x),
    (op(("shl", "shr"), X, ZERO), _x),
    (op(("or", "xor"), X, ZERO, commutative=True), _x),
    (op("and", X, ONES, commutative=True), lambda x, ones: x),
    (op("and", capture(), ZERO, name="n", commutative=True), _zero),
    (op("or", capture(), ONES, commutative=True), lambda ones: ones),
    (op("neg", op("neg", X)), _x),
    (op("not", op("not", X)), _x),
    (op("abs", op(("neg", "abs"), X)), lambda x: g.abs(x)),
)
"""What numbers obey."""


SAME = capture("x", when=lambda n: n.dtype.kind in EXACT)
CHOICES: Rows = (
    (op(("eq", "le"), SAME, SAME, name="n"), lambda n, x: g.full_like(n, True)),
    (op("ne", SAME, SAME, name="n"), lambda n, x: g.full_like(n, False)),
    (op("lt", X, X, name="n"), lambda n, x: g.full_like(n, False)),
    (op("eq", capture("x", dtype=DType.BOOL), constant(True), commutative=True), _x),
    (op("ne", capture("x", dtype=DType.BOOL), constant(False), commutative=True), _x),
    (op("where", constant(True), X, capture()), _x),
    (op("where", constant(False), capture(), X), _x),
    (op("where", capture(), X, X), _x),
    (op("where", X, constant(True), constant(False), dtype=DType.BOOL), _x),
    (op("where", op("not", C), A, B), lambda c, a, b: g.where(c, b, a)),
    (op("where", C, op("where", C, A, capture()), B), lambda c, a, b: g.where(c, a, b)),
    (op("where", C, A, op("where", C, capture(), B)), lambda c, a, b: g.where(c, a, b)),
)
"""Comparisons and choice."""


def keeps_values(source: DType, into: DType) -> bool:
    """Whether a cast from one element type to the other changes no value."""
    if source is into or source is DType.BOOL:
        return True
    if into is DType.BOOL or (source.is_float and not into.is_float):
        return False
    if source.is_float:
        return source.mantissa <= into.mantissa and source.exponent <= into.exponent
    low, high = bounds(source)
    if into.is_float:
        exact = 2 << into.mantissa
        return -low <= exact and high < exact
    return bounds(into)[0] <= low and high <= bounds(into)[1]


def _cast_chain(n: Node, x: Node, middle: Node) -> Node | None:
    """Through a type that keeps x's values, or from integer to ever narrower integer."""
    source, via, into = x.dtype, middle.dtype, n.dtype
    if source.is_int and via.is_int and into.is_int and into.bits <= via.bits:
        return g.cast(x, into)
    saturates = source.is_int and via.is_float and into.is_int
    if keeps_values(source, via) and (not saturates or keeps_values(source, into)):
        return g.cast(x, into)
    return None


_MOVES = "reshape", "permute", "expand", "slice"


def _cast_of_moved(n: Node, moved: Node) -> Node | None:
    """A cast back to the type of what was widened before it was moved."""
    moves = []
    while moved.op in _MOVES:
        moves.append(moved)
        (moved,) = moved.srcs
    x = moved.srcs[0] if moved.op == "cast" else moved
    if x.dtype is not n.dtype or not keeps_values(x.dtype, moved.dtype):
        return None
    for move in reversed(moves):
        x = node(move.op, move.type.with_dtype(n.dtype), (x,), **dict(move.attrs))
    return x


CASTS: Rows = (
    (op("cast", op("cast", X, name="middle"), name="n"), _cast_chain),
    (op("cast", op(_MOVES, name="moved"), name="n"), _cast_of_moved),
    (op("cast", X, name="n"), lambda n, x: x if n.dtype is x.dtype else None),
    (op("bitcast", op("bitcast", X), name="n"), lambda n, x: g.bitcast(x, n.dtype)),
)
"""Chains of conversions."""


def _constants(n: Node) -> bool:
    """Whether all operands are plain numbers: with one of a size only kernels can compute."""
    found = [number_of(s) for s in n.srcs]
    return all(value is not None and not is_symbolic(value) for value in found)


def _number(n: Node) -> float | int | bool:
    value = number_of(n)
    assert value is not None
    return value


def _values(n: Node) -> list[numeric.Array]:
    return [numeric.constant(_number(s), s.dtype) for s in n.srcs]


def _computed(n: Node, value: numeric.Array) -> Node:
    return g.full_like(n, float(value) if n.dtype.is_narrow else np.asarray(value).item())


def _fold(n: Node) -> Node:
    with numeric.quiet():
        return _computed(n, numeric.elementwise(n.op, *_values(n)))


def _fold_cast(n: Node) -> Node:
    with numeric.quiet():
        return _computed(n, numeric.convert(_values(n)[0], n.dtype))


_FOLDED = sorted(name for name, row in OPS.items() if row.lower is same_name)
"""What `hal.tile.numeric` computes as the kernels do."""

FOLDS: Rows = (
    (op(_FOLDED, name="n", when=_constants), _fold),
    (op("cast", name="n", when=_constants), _fold_cast),
)
"""Operations on constants alone."""
