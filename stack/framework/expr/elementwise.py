"""Elementwise operations."""

from __future__ import annotations

import math
from collections.abc import Callable

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework.errors import TensorError
from stack.framework.expr.operand import Number, Operand, as_float, common_dtype, meet


def add(x: Operand, y: Operand) -> Node:
    """x + y; for bool tensors `or`."""
    a, b = meet(x, y)
    return g.or_(a, b) if a.dtype is DType.BOOL else g.add(a, b)


def sub(x: Operand, y: Operand) -> Node:
    """x - y. Raises TensorError for bool tensors."""
    a, b = meet(x, y)
    if a.dtype is DType.BOOL:
        raise TensorError("- is not defined for bool tensors; use ^ or logical_not")
    return g.sub(a, b)


def mul(x: Operand, y: Operand) -> Node:
    """x * y; for bool tensors `and`."""
    a, b = meet(x, y)
    return g.and_(a, b) if a.dtype is DType.BOOL else g.mul(a, b)


def div(x: Operand, y: Operand) -> Node:
    """x / y, in float32 when both are integers."""
    if not common_dtype(x, y).is_float:
        return g.div(*meet(x, y, dtype=DType.F32))
    if isinstance(x, Node) and not isinstance(y, Node) and _exact_inverse(y):
        return mul(x, 1 / y)
    return g.div(*meet(x, y))


def _exact_inverse(y: Number) -> bool:
    """Whether multiplying by 1/y gives exactly what dividing by y does: y is a small power of
    two."""
    return y != 0 and abs(math.frexp(y)[0]) == 0.5 and abs(math.log2(abs(y))) < 12


def floor_divide(x: Operand, y: Operand) -> Node:
    """x / y rounded down; an integer divided by 0 gives 0."""
    return g.floordiv(*meet(x, y))


def remainder(x: Operand, y: Operand) -> Node:
    """What is left by floor_divide, with y's sign; an integer divided by 0 leaves 0."""
    return g.mod(*meet(x, y))


def pow(x: Operand, y: Operand) -> Node:
    """x to the power of y."""
    if isinstance(x, Node) and not isinstance(y, Node):
        return _power(x, y)
    a, b = meet(x, y)
    if not a.dtype.is_float:
        raise TensorError(
            "pow of integers takes a Python int as exponent; or convert with .float()"
        )
    return g.pow(a, b)


def _power(x: Node, n: Number) -> Node:
    """Small whole exponents as products, halves as square roots."""
    if 0 <= n <= 8 and n == int(n) and (x.dtype.is_float or isinstance(n, int)):
        return _product(x, int(n))
    if not common_dtype(x, n).is_float:
        raise TensorError(f"an integer tensor to the power of {n}: convert it with .float()")
    (a, b) = meet(x, n)
    special = {0.5: g.sqrt, -0.5: g.rsqrt, -1: g.recip}
    return special[n](a) if n in special else g.pow(a, b)


def _product(x: Node, n: int) -> Node:
    if n == 0:
        return g.full_like(x, 1)
    half = _product(x, n // 2) if n > 1 else x
    square = mul(half, half) if n > 1 else x
    return mul(square, x) if n > 1 and n % 2 else square


def minimum(x: Operand, y: Operand) -> Node:
    """The lesser of both; NaN where one is NaN."""
    return g.minimum(*meet(x, y))


def maximum(x: Operand, y: Operand) -> Node:
    """The greater of both; NaN where one is NaN."""
    return g.maximum(*meet(x, y))


def where(condition: Node, x: Operand, y: Operand) -> Node:
    """x where the condition holds, else y."""
    if condition.dtype is not DType.BOOL:
        raise TensorError("the condition must be a bool tensor; compare it with something")
    a, b = meet(x, y)
    shape = meet(condition, a)[1].shape
    return g.where(*(g.broadcast(n, shape) for n in (condition, a, b)))


def clamp(x: Node, min: Operand | None = None, max: Operand | None = None) -> Node:
    """x limited to [min, max]; NaN where x or a limit is NaN."""
    if min is None and max is None:
        raise TensorError("needs a min, a max or both")
    if min is not None:
        x = _limited(x, min, g.lt)
    if max is not None:
        x = _limited(x, max, lambda a, high: g.lt(high, a))
    return x


def _limited(x: Node, limit: Operand, beyond: Callable[[Node, Node], Node]) -> Node:
    a, b = meet(x, limit)
    outside = beyond(a, b)
    if b.dtype.is_float and (isinstance(limit, Node) or limit != limit):
        outside = g.or_(outside, isnan(b))
    return g.where(outside, b, a)


def neg(x: Node) -> Node:
    return g.neg(x)


def abs_(x: Node) -> Node:
    return g.abs(x)


def sign(x: Node) -> Node:
    """-1, 0 or 1; NaN gives 0. No gradient flows."""
    zero = g.full_like(x, 0)
    one, minus = g.full_like(x, 1), g.full_like(x, 0 if x.dtype.kind == "u" else -1)
    return g.where(g.lt(zero, x), one, g.where(g.lt(x, zero), minus, zero))


def exp(x: Node) -> Node:
    return g.exp(as_float(x))


def log(x: Node) -> Node:
    return g.log(as_float(x))


def log2(x: Node) -> Node:
    return mul(log(x), 1 / math.log(2))


def log10(x: Node) -> Node:
    return mul(log(x), 1 / math.log(10))


def sin(x: Node) -> Node:
    return g.sin(as_float(x))


def cos(x: Node) -> Node:
    return g.cos(as_float(x))


def tan(x: Node) -> Node:
    return g.div(sin(x), cos(x))


def tanh(x: Node) -> Node:
    return g.tanh(as_float(x))


def sigmoid(x: Node) -> Node:
    """1 / (1 + exp(-x))."""
    v = as_float(x)
    return g.recip(add(g.exp(g.neg(v)), 1))


def erf(x: Node) -> Node:
    return g.erf(as_float(x))


def sqrt(x: Node) -> Node:
    return g.sqrt(as_float(x))


def rsqrt(x: Node) -> Node:
    return g.rsqrt(as_float(x))


def reciprocal(x: Node) -> Node:
    return g.recip(as_float(x))


def floor(x: Node) -> Node:
    return g.floor(x) if x.dtype.is_float else x


def ceil(x: Node) -> Node:
    return g.ceil(x) if x.dtype.is_float else x


def round(x: Node) -> Node:
    """To the nearest whole number, halves to even."""
    return g.round(x) if x.dtype.is_float else x


def square(x: Node) -> Node:
    return mul(x, x)


def isnan(x: Node) -> Node:
    return g.ne(x, x)


def isinf(x: Node) -> Node:
    return eq(g.abs(x), math.inf) if x.dtype.is_float else g.ne(x, x)


def isfinite(x: Node) -> Node:
    return lt(g.abs(x), math.inf) if x.dtype.is_float else g.eq(x, x)


def eq(x: Operand, y: Operand) -> Node:
    return g.eq(*meet(x, y))


def ne(x: Operand, y: Operand) -> Node:
    return g.ne(*meet(x, y))


def lt(x: Operand, y: Operand) -> Node:
    return g.lt(*_ordered(x, y))


def le(x: Operand, y: Operand) -> Node:
    return g.le(*_ordered(x, y))


def gt(x: Operand, y: Operand) -> Node:
    return lt(y, x)


def ge(x: Operand, y: Operand) -> Node:
    return le(y, x)


def _ordered(x: Operand, y: Operand) -> tuple[Node, ...]:
    return meet(x, y, dtype=DType.U8 if common_dtype(x, y) is DType.BOOL else None)


def bitwise_and(x: Operand, y: Operand) -> Node:
    return g.and_(*meet(x, y))


def bitwise_or(x: Operand, y: Operand) -> Node:
    return g.or_(*meet(x, y))


def bitwise_xor(x: Operand, y: Operand) -> Node:
    return g.xor(*meet(x, y))


def bitwise_not(x: Node) -> Node:
    return g.not_(x)


def shift_left(x: Operand, y: Operand) -> Node:
    return g.shl(*meet(x, y))


def shift_right(x: Operand, y: Operand) -> Node:
    return g.shr(*meet(x, y))


def logical_not(x: Node) -> Node:
    return g.not_(g.cast(x, DType.BOOL))


def logical_and(x: Operand, y: Operand) -> Node:
    return g.and_(*meet(x, y, dtype=DType.BOOL))


def logical_or(x: Operand, y: Operand) -> Node:
    return g.or_(*meet(x, y, dtype=DType.BOOL))


def to(x: Node, dtype: DType) -> Node:
    """x converted: float to integer truncates, to bool is `!= 0`."""
    return g.cast(x, dtype)
