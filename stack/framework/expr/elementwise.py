"""Elementwise operations."""

from __future__ import annotations

import math
from collections.abc import Callable

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework.errors import TensorError
from stack.framework.expr.operand import Number, Operand, as_float, common_dtype, meet
from stack.framework.expr.public import operator


@operator(symbol="+", in_place=True, aten="add", onnx="Add")
def add(x: Operand, y: Operand) -> Node:
    """x + y; for bool tensors `or`."""
    a, b = meet(x, y)
    return g.or_(a, b) if a.dtype is DType.BOOL else g.add(a, b)


@operator(symbol="-", in_place=True, aten="sub", onnx="Sub")
def sub(x: Operand, y: Operand) -> Node:
    """x - y. Raises TensorError for bool tensors."""
    a, b = meet(x, y)
    if a.dtype is DType.BOOL:
        raise TensorError("- is not defined for bool tensors; use ^ or logical_not")
    return g.sub(a, b)


@operator(symbol="*", in_place=True, aten="mul", onnx="Mul")
def mul(x: Operand, y: Operand) -> Node:
    """x * y; for bool tensors `and`."""
    a, b = meet(x, y)
    return g.and_(a, b) if a.dtype is DType.BOOL else g.mul(a, b)


@operator(aliases=("true_divide",), symbol="/", in_place=True, aten="div", onnx="Div")
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


@operator(symbol="//", aten="floor_divide")
def floor_divide(x: Operand, y: Operand) -> Node:
    """x / y rounded down; an integer divided by 0 gives 0."""
    return g.floordiv(*meet(x, y))


@operator(symbol="%", aten="remainder", onnx="Mod")
def remainder(x: Operand, y: Operand) -> Node:
    """What is left by floor_divide, with y's sign; an integer divided by 0 leaves 0."""
    return g.mod(*meet(x, y))


@operator(symbol="**", aten="pow", onnx="Pow")
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


@operator(aten="minimum", onnx="Min")
def minimum(x: Operand, y: Operand) -> Node:
    """The lesser of both; NaN where one is NaN."""
    return g.minimum(*meet(x, y))


@operator(aten="maximum", onnx="Max")
def maximum(x: Operand, y: Operand) -> Node:
    """The greater of both; NaN where one is NaN."""
    return g.maximum(*meet(x, y))


@operator(method=False, aten="where", onnx="Where")
def where(condition: Node, x: Operand, y: Operand) -> Node:
    """x where the condition holds, else y."""
    if condition.dtype is not DType.BOOL:
        raise TensorError("the condition must be a bool tensor; compare it with something")
    a, b = meet(x, y)
    shape = meet(condition, a)[1].shape
    return g.where(*(g.broadcast(n, shape) for n in (condition, a, b)))


@operator("where", function=False)
def _where_method(x: Node, condition: Node, other: Operand) -> Node:
    """x where the condition holds, else other."""
    return where(condition, x, other)


@operator(function=False, aten="masked_fill")
def masked_fill(x: Node, mask: Node, value: Operand) -> Node:
    """value where the mask holds, else x; its element type is that of x."""
    return g.cast(fill_where(x, mask, value), x.dtype)


def fill_where(x: Node, mask: Node, value: Operand) -> Node:
    """value, a number of x's element type or a tensor, where the mask holds, else x."""
    return where(mask, value if isinstance(value, Node) else g.const(value, x.dtype), x)


@operator(aliases=("clip",), in_place=True, aten="clamp", onnx="Clip")
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


@operator(aten="sign", onnx="Sign")
def sign(x: Node) -> Node:
    """-1, 0 or 1; NaN gives 0. No gradient flows."""
    zero = g.full_like(x, 0)
    one, minus = g.full_like(x, 1), g.full_like(x, 0 if x.dtype.kind == "u" else -1)
    return g.where(g.lt(zero, x), one, g.where(g.lt(x, zero), minus, zero))


@operator(aten="log2")
def log2(x: Node) -> Node:
    """The logarithm of x to the base 2."""
    return mul(g.log(as_float(x)), 1 / math.log(2))


@operator(aten="log10")
def log10(x: Node) -> Node:
    """The logarithm of x to the base 10."""
    return mul(g.log(as_float(x)), 1 / math.log(10))


@operator(aten="tan", onnx="Tan")
def tan(x: Node) -> Node:
    """The tangent of x radians."""
    v = as_float(x)
    return g.div(g.sin(v), g.cos(v))


@operator(layer=True, aten="sigmoid", onnx="Sigmoid")
def sigmoid(x: Node) -> Node:
    """1 / (1 + exp(-x))."""
    v = as_float(x)
    return g.recip(add(g.exp(g.neg(v)), 1))


@operator(aten="floor", onnx="Floor")
def floor(x: Node) -> Node:
    """The greatest whole number that is at most x; integers stay."""
    return g.floor(x) if x.dtype.is_float else x


@operator(aten="ceil", onnx="Ceil")
def ceil(x: Node) -> Node:
    """The least whole number that is at least x; integers stay."""
    return g.ceil(x) if x.dtype.is_float else x


@operator(aten="round", onnx="Round")
def round(x: Node) -> Node:
    """To the nearest whole number, halves to even."""
    return g.round(x) if x.dtype.is_float else x


@operator(aten="square")
def square(x: Node) -> Node:
    """x * x."""
    return mul(x, x)


@operator(aten="isnan", onnx="IsNaN")
def isnan(x: Node) -> Node:
    """Whether x is NaN, as bool."""
    return g.ne(x, x)


@operator(aten="isinf", onnx="IsInf")
def isinf(x: Node) -> Node:
    """Whether x is inf or -inf, as bool."""
    return eq(g.abs(x), math.inf) if x.dtype.is_float else g.ne(x, x)


@operator(aten="isfinite")
def isfinite(x: Node) -> Node:
    """Whether x is neither infinite nor NaN, as bool."""
    return lt(g.abs(x), math.inf) if x.dtype.is_float else g.eq(x, x)


@operator(symbol="==", aten="eq", onnx="Equal")
def eq(x: Operand, y: Operand) -> Node:
    """x == y, as bool."""
    return g.eq(*meet(x, y))


@operator(symbol="!=", aten="ne")
def ne(x: Operand, y: Operand) -> Node:
    """x != y, as bool."""
    return g.ne(*meet(x, y))


@operator(symbol="<", aten="lt", onnx="Less")
def lt(x: Operand, y: Operand) -> Node:
    """x < y, as bool."""
    return g.lt(*_ordered(x, y))


@operator(symbol="<=", aten="le", onnx="LessOrEqual")
def le(x: Operand, y: Operand) -> Node:
    """x <= y, as bool."""
    return g.le(*_ordered(x, y))


@operator(symbol=">", aten="gt", onnx="Greater")
def gt(x: Operand, y: Operand) -> Node:
    """x > y, as bool."""
    return lt(y, x)


@operator(symbol=">=", aten="ge", onnx="GreaterOrEqual")
def ge(x: Operand, y: Operand) -> Node:
    """x >= y, as bool."""
    return le(y, x)


def _ordered(x: Operand, y: Operand) -> tuple[Node, ...]:
    return meet(x, y, dtype=DType.U8 if common_dtype(x, y) is DType.BOOL else None)


@operator(symbol="&", aten="bitwise_and", onnx="BitwiseAnd")
def bitwise_and(x: Operand, y: Operand) -> Node:
    """The bits set in both of two integers or bools."""
    return g.and_(*meet(x, y))


@operator(symbol="|", aten="bitwise_or", onnx="BitwiseOr")
def bitwise_or(x: Operand, y: Operand) -> Node:
    """The bits set in either of two integers or bools."""
    return g.or_(*meet(x, y))


@operator(symbol="^", aten="bitwise_xor", onnx="BitwiseXor")
def bitwise_xor(x: Operand, y: Operand) -> Node:
    """The bits set in one of two integers or bools."""
    return g.xor(*meet(x, y))


@operator(symbol="~x", aten="bitwise_not", onnx="BitwiseNot")
def bitwise_not(x: Node) -> Node:
    """Every bit of an integer or bool inverted."""
    return g.not_(x)


@operator("bitwise_left_shift", symbol="<<", aten="bitwise_left_shift", onnx="BitShift")
def shift_left(x: Operand, y: Operand) -> Node:
    """x with its bits y places up; 0 from the width of its type on."""
    return g.shl(*meet(x, y))


@operator("bitwise_right_shift", symbol=">>", aten="bitwise_right_shift", onnx="BitShift")
def shift_right(x: Operand, y: Operand) -> Node:
    """x with its bits y places down; an integer with a sign keeps it."""
    return g.shr(*meet(x, y))


@operator(aten="logical_not", onnx="Not")
def logical_not(x: Node) -> Node:
    """Whether x is 0, as bool."""
    return g.not_(g.cast(x, DType.BOOL))


@operator(aten="logical_and", onnx="And")
def logical_and(x: Operand, y: Operand) -> Node:
    """Whether neither is 0, as bool."""
    return g.and_(*meet(x, y, dtype=DType.BOOL))


@operator(aten="logical_or", onnx="Or")
def logical_or(x: Operand, y: Operand) -> Node:
    """Whether one is not 0, as bool."""
    return g.or_(*meet(x, y, dtype=DType.BOOL))


def to(x: Node, dtype: DType) -> Node:
    """x converted: float to integer truncates, to bool is `!= 0`."""
    return g.cast(x, dtype)
