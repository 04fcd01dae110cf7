"""Elementwise operations."""

from __future__ import annotations

import math
from collections.abc import Callable

from hal.core.dtypes import DType
from hal.tile.node import Node
from hal.tile.size import is_symbolic
from stack import ops as g
from stack.framework.errors import TensorError
from stack.framework.expr.operand import (
    Number,
    Operand,
    as_float,
    common_dtype,
    meet,
    once,
    once_with_factor,
)
from stack.framework.expr.public import operator


@operator(symbol="+", in_place=True, aten="add", onnx="Add")
def add(x: Operand, y: Operand, alpha: Number = 1) -> Node:
    """x + alpha * y; for bool tensors `or`."""
    if alpha != 1:
        return _scaled_sum(x, y, alpha)
    a, b = meet(x, y)
    return g.or_(a, b) if a.dtype is DType.BOOL else g.add(a, b)


@once
def _scaled_sum(x: Operand, y: Operand, alpha: Number) -> Node:
    return add(x, mul(y, alpha))


@operator(aliases=("subtract",), symbol="-", in_place=True, aten="sub", onnx="Sub")
def sub(x: Operand, y: Operand, alpha: Number = 1) -> Node:
    """x - alpha * y. Raises TensorError for bool tensors."""
    if alpha != 1:
        return _scaled_difference(x, y, alpha)
    a, b = meet(x, y)
    if a.dtype is DType.BOOL:
        raise TensorError("- is not defined for bool tensors; use ^ or logical_not")
    return g.sub(a, b)


@once
def _scaled_difference(x: Operand, y: Operand, alpha: Number) -> Node:
    return sub(x, mul(y, alpha))


@operator(aliases=("multiply",), symbol="*", in_place=True, aten="mul", onnx="Mul")
@once_with_factor
def mul(x: Operand, y: Operand) -> Node:
    """x * y; for bool tensors `and`."""
    a, b = meet(x, y)
    return g.and_(a, b) if a.dtype is DType.BOOL else g.mul(a, b)


@operator(aliases=("true_divide", "divide"), symbol="/", in_place=True, aten="div", onnx="Div")
@once_with_factor
def div(x: Operand, y: Operand, rounding_mode: str | None = None) -> Node:
    """x / y, in float32 when both are integers; rounded down with "floor", to 0 with "trunc"."""
    if rounding_mode == "floor":
        return floor_divide(x, y)
    if rounding_mode == "trunc":
        kind = common_dtype(x, y)
        return trunc(div(x, y)) if kind.is_float else _truncated(*meet(x, y))
    if rounding_mode is not None:
        raise TensorError(f'rounding_mode is None, "floor" or "trunc", got {rounding_mode!r}')
    if not common_dtype(x, y).is_float:
        return g.div(*meet(x, y, dtype=DType.F32))
    if isinstance(x, Node) and not isinstance(y, Node) and _exact_inverse(y):
        return mul(x, 1 / y)
    return g.div(*meet(x, y))


def _truncated(a: Node, b: Node) -> Node:
    """The quotient of integers towards 0."""
    q, r = g.floordiv(a, b), g.mod(a, b)
    above = g.and_(ne(r, 0), lt(g.xor(a, b), 0)) if a.dtype.kind == "i" else g.ne(r, r)
    return g.where(above, add(q, 1), q)


def _exact_inverse(y: Number) -> bool:
    """Whether multiplying by 1/y gives exactly what dividing by y does: y is a small power of
    two."""
    if is_symbolic(y):
        return False
    return y != 0 and abs(math.frexp(y)[0]) == 0.5 and abs(math.log2(abs(y))) < 12


@operator(symbol="//", in_place=True, aten="floor_divide")
def floor_divide(x: Operand, y: Operand) -> Node:
    """x / y rounded down; an integer divided by 0 gives 0."""
    return g.floordiv(*meet(x, y))


@operator(symbol="%", in_place=True, aten="remainder", onnx="Mod")
def remainder(x: Operand, y: Operand) -> Node:
    """What is left by floor_divide, with y's sign; an integer divided by 0 leaves 0."""
    return g.mod(*meet(x, y))


@operator(named=(("exponent", "y"),), symbol="**", in_place=True, aten="pow", onnx="Pow")
def pow(x: Operand, y: Operand) -> Node:
    """x to the power of y."""
    if isinstance(x, Node) and not isinstance(y, Node):
        # Small whole exponents as products, halves as square roots.
        x = g.cast(x, common_dtype(x, y)) if x.dtype is DType.BOOL else x
        if is_symbolic(y) and x.dtype.is_float:
            return g.pow(*meet(x, y))
        if 0 <= y <= 8 and y == int(y) and (x.dtype.is_float or isinstance(y, int)):
            return _product(x, int(y))
        if not common_dtype(x, y).is_float:
            raise TensorError(f"an integer tensor to the power of {y}: convert it with .float()")
        (a, b) = meet(x, y)
        special = {0.5: g.sqrt, -0.5: g.rsqrt, -1: g.recip}
        return special[y](a) if y in special else g.pow(a, b)
    a, b = meet(x, y)
    if a.dtype.is_float:
        return g.pow(a, b)
    if not isinstance(y, Node) and y < 0:
        raise TensorError(f"an integer tensor to the power of {y}: convert it with .float()")
    return _whole_power(*(g.cast(v, DType.U8) if v.dtype is DType.BOOL else v for v in (a, b)))


def _whole_power(x: Node, n: Node) -> Node:
    """Integers to the power of integers, modulo 2 ** bits: a square for each bit of the exponent.
    Of negative exponents what is left of the fraction: 1 and -1 stay whole."""
    total, power = g.full_like(x, 1), x
    signed = x.dtype.kind == "i"
    for bit in range(x.dtype.bits - signed):
        is_set = ne(bitwise_and(n, 1 << bit), 0)
        total = g.where(is_set, g.mul(total, power), total)
        power = g.mul(power, power)
    if not signed:
        return total
    odd = ne(bitwise_and(n, 1), 0)
    fraction = where(eq(x, 1), 1, where(eq(x, -1), where(odd, -1, g.full_like(x, 1)), 0))
    return where(lt(n, 0), fraction, total)


def _product(x: Node, n: int) -> Node:
    if n == 0:
        return g.full_like(x, 1)
    half = _product(x, n // 2) if n > 1 else x
    square = mul(half, half) if n > 1 else x
    return mul(square, x) if n > 1 and n % 2 else square


@operator(aten="minimum", onnx="Min")
def minimum(x: Operand, y: Operand) -> Node:
    """The lesser of both; NaN where one is NaN."""
    a, b = meet(x, y)
    return g.minimum(a, b) if a.dtype is not DType.BOOL else g.and_(a, b)


@operator(aten="maximum", onnx="Max")
def maximum(x: Operand, y: Operand) -> Node:
    """The greater of both; NaN where one is NaN."""
    a, b = meet(x, y)
    return g.maximum(a, b) if a.dtype is not DType.BOOL else g.or_(a, b)


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


@operator(aten="masked_fill")
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
    if isinstance(min, Node) and isinstance(max, Node):
        x = g.cast(x, common_dtype(x, min, max))
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


@operator(aliases=("sgn",), in_place=True, aten="sign", onnx="Sign")
def sign(x: Node) -> Node:
    """-1, 0 or 1; NaN gives 0. No gradient flows."""
    if x.dtype is DType.BOOL:
        return x
    zero = g.full_like(x, 0)
    one, minus = g.full_like(x, 1), g.full_like(x, 0 if x.dtype.kind == "u" else -1)
    return g.where(g.lt(zero, x), one, g.where(g.lt(x, zero), minus, zero))


@operator(in_place=True, aten="log2")
@once
def log2(x: Node) -> Node:
    """The logarithm of x to the base 2."""
    return mul(g.log(as_float(x)), 1 / math.log(2))


@operator(in_place=True, aten="log10")
@once
def log10(x: Node) -> Node:
    """The logarithm of x to the base 10."""
    return mul(g.log(as_float(x)), 1 / math.log(10))


@operator(in_place=True, aten="tan", onnx="Tan")
@once
def tan(x: Node) -> Node:
    """The tangent of x radians."""
    v = as_float(x)
    return g.div(g.sin(v), g.cos(v))


@operator(layer=True, in_place=True, aten="sigmoid", onnx="Sigmoid")
@once
def sigmoid(x: Node) -> Node:
    """1 / (1 + exp(-x))."""
    v = as_float(x)
    return g.recip(add(g.exp(g.neg(v)), 1))


@operator(in_place=True, aten="floor", onnx="Floor")
def floor(x: Node) -> Node:
    """The greatest whole number that is at most x; integers stay."""
    return g.floor(x) if x.dtype.is_float else x


@operator(in_place=True, aten="ceil", onnx="Ceil")
def ceil(x: Node) -> Node:
    """The least whole number that is at least x; integers stay."""
    return g.ceil(x) if x.dtype.is_float else x


@operator(in_place=True, aten="round", onnx="Round")
@once
def round(x: Node, decimals: int = 0) -> Node:
    """To the nearest whole number, or multiple of 10 ** -decimals, halves to even."""
    if not x.dtype.is_float:
        return x
    if decimals == 0:
        return g.round(x)
    by = 10.0 ** abs(decimals)
    return div(g.round(mul(x, by)), by) if decimals > 0 else mul(g.round(div(x, by)), by)


@operator(in_place=True, aten="square")
def square(x: Node) -> Node:
    """x * x; of a bool an int64."""
    return mul(x, x if x.dtype is not DType.BOOL else g.cast(x, DType.I64))


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


@operator(symbol="==", in_place=True, aten="eq", onnx="Equal")
def eq(x: Operand, y: Operand) -> Node:
    """x == y, as bool."""
    return g.eq(*meet(x, y))


@operator(aliases=("not_equal",), symbol="!=", in_place=True, aten="ne")
def ne(x: Operand, y: Operand) -> Node:
    """x != y, as bool."""
    return g.ne(*meet(x, y))


@operator(aliases=("less",), symbol="<", in_place=True, aten="lt", onnx="Less")
def lt(x: Operand, y: Operand) -> Node:
    """x < y, as bool."""
    return g.lt(*_ordered(x, y))


@operator(aliases=("less_equal",), symbol="<=", in_place=True, aten="le", onnx="LessOrEqual")
def le(x: Operand, y: Operand) -> Node:
    """x <= y, as bool."""
    return g.le(*_ordered(x, y))


@operator(aliases=("greater",), symbol=">", in_place=True, aten="gt", onnx="Greater")
def gt(x: Operand, y: Operand) -> Node:
    """x > y, as bool."""
    return lt(y, x)


@operator(aliases=("greater_equal",), symbol=">=", in_place=True, aten="ge", onnx="GreaterOrEqual")
def ge(x: Operand, y: Operand) -> Node:
    """x >= y, as bool."""
    return le(y, x)


def _ordered(x: Operand, y: Operand) -> tuple[Node, ...]:
    return meet(x, y, dtype=DType.U8 if common_dtype(x, y) is DType.BOOL else None)


@operator(symbol="&", in_place=True, aten="bitwise_and", onnx="BitwiseAnd")
def bitwise_and(x: Operand, y: Operand) -> Node:
    """The bits set in both of two integers or bools."""
    return g.and_(*meet(x, y))


@operator(symbol="|", in_place=True, aten="bitwise_or", onnx="BitwiseOr")
def bitwise_or(x: Operand, y: Operand) -> Node:
    """The bits set in either of two integers or bools."""
    return g.or_(*meet(x, y))


@operator(symbol="^", in_place=True, aten="bitwise_xor", onnx="BitwiseXor")
def bitwise_xor(x: Operand, y: Operand) -> Node:
    """The bits set in one of two integers or bools."""
    return g.xor(*meet(x, y))


@operator(symbol="~x", in_place=True, aten="bitwise_not", onnx="BitwiseNot")
def bitwise_not(x: Node) -> Node:
    """Every bit of an integer or bool inverted."""
    return g.not_(x)


@operator(
    "bitwise_left_shift", symbol="<<", in_place=True, aten="bitwise_left_shift", onnx="BitShift"
)
def shift_left(x: Operand, y: Operand) -> Node:
    """x with its bits y places up; 0 from the width of its type on."""
    return g.shl(*meet(x, y))


@operator(
    "bitwise_right_shift", symbol=">>", in_place=True, aten="bitwise_right_shift", onnx="BitShift"
)
def shift_right(x: Operand, y: Operand) -> Node:
    """x with its bits y places down; an integer with a sign keeps it."""
    return g.shr(*meet(x, y))


@operator(in_place=True, aten="logical_not", onnx="Not")
def logical_not(x: Node) -> Node:
    """Whether x is 0, as bool."""
    return g.not_(g.cast(x, DType.BOOL))


@operator(in_place=True, aten="logical_and", onnx="And")
def logical_and(x: Operand, y: Operand) -> Node:
    """Whether neither is 0, as bool."""
    return g.and_(*meet(x, y, dtype=DType.BOOL))


@operator(in_place=True, aten="logical_or", onnx="Or")
def logical_or(x: Operand, y: Operand) -> Node:
    """Whether one is not 0, as bool."""
    return g.or_(*meet(x, y, dtype=DType.BOOL))


@operator(in_place=True, aten="logical_xor", onnx="Xor")
def logical_xor(x: Operand, y: Operand) -> Node:
    """Whether one of both is 0, as bool."""
    return g.xor(*meet(x, y, dtype=DType.BOOL))


@operator(aliases=("fix",), in_place=True, aten="trunc")
def trunc(x: Node) -> Node:
    """The nearest whole number towards 0; integers stay. No gradient flows."""
    return g.trunc(x) if x.dtype.is_float else x


@operator(in_place=True, aten="frac")
def frac(x: Node) -> Node:
    """x without its whole part."""
    return g.sub(x, g.trunc(x))


@operator(shares=True, aten="positive")
def positive(x: Node) -> Node:
    """x itself."""
    return x


@operator(aten="rsub")
@once
def rsub(x: Operand, y: Operand, alpha: Number = 1) -> Node:
    """y - alpha * x."""
    return sub(y, x, alpha)


@operator(in_place=True, aten="lerp")
@once
def lerp(x: Node, end: Operand, weight: Operand) -> Node:
    """x + weight * (end - x)."""
    return add(x, mul(weight, sub(end, x)))


@operator(in_place=True, aten="addcmul")
@once
def addcmul(x: Node, tensor1: Node, tensor2: Node, value: Number = 1) -> Node:
    """x + value * tensor1 * tensor2."""
    return add(x, mul(mul(tensor1, tensor2), value))


@operator(in_place=True, aten="addcdiv")
@once
def addcdiv(x: Node, tensor1: Node, tensor2: Node, value: Number = 1) -> Node:
    """x + value * tensor1 / tensor2."""
    return add(x, mul(div(tensor1, tensor2), value))


@operator(in_place=True, aten="clamp_min")
def clamp_min(x: Node, min: Operand) -> Node:
    """x, but at least min."""
    return clamp(x, min=min)


@operator(in_place=True, aten="clamp_max")
def clamp_max(x: Node, max: Operand) -> Node:
    """x, but at most max."""
    return clamp(x, max=max)


@operator(aten="fmax")
def fmax(x: Operand, y: Operand) -> Node:
    """The greater of both; the other one where one is NaN."""
    a, b = meet(x, y)
    first = g.or_(isnan(b), le(b, a))
    return g.where(g.and_(first, g.not_(isnan(a))), a, b)


@operator(aten="fmin")
def fmin(x: Operand, y: Operand) -> Node:
    """The lesser of both; the other one where one is NaN."""
    a, b = meet(x, y)
    first = g.or_(isnan(b), le(a, b))
    return g.where(g.and_(first, g.not_(isnan(a))), a, b)


@operator(aten="isposinf")
def isposinf(x: Node) -> Node:
    """Whether x is inf, as bool."""
    return eq(x, math.inf) if x.dtype.is_float else g.ne(x, x)


@operator(aten="isneginf")
def isneginf(x: Node) -> Node:
    """Whether x is -inf, as bool."""
    return eq(x, -math.inf) if x.dtype.is_float else g.ne(x, x)


@operator(aten="isreal")
def isreal(x: Node) -> Node:
    """True: there are no complex tensors."""
    return g.full(x.shape, True, DType.BOOL)


@operator(aten="signbit")
def signbit(x: Node) -> Node:
    """Whether x is negative or -0.0, as bool."""
    if not x.dtype.is_float:
        return lt(x, 0)
    bits = {8: DType.I8, 16: DType.I16, 32: DType.I32, 64: DType.I64}[x.dtype.bits]
    return lt(g.bitcast(x, bits), 0)


@operator(in_place=True, aten="copysign")
def copysign(x: Operand, y: Operand) -> Node:
    """The size of x with the sign of y."""
    a, b = (as_float(v) for v in meet(x, y))
    return g.where(g.xor(signbit(a), signbit(b)), g.neg(a), a)


def largest(dtype: DType) -> float:
    """The greatest finite number of a float type."""
    missing = 2 if dtype.finite_only else 1
    return math.ldexp(2 - missing * 2.0**-dtype.mantissa, dtype.bias + dtype.finite_only)


@operator(in_place=True, aten="nan_to_num")
def nan_to_num(
    x: Node, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Node:
    """x with numbers for NaN (0) and for inf and -inf (the greatest and least ones)."""
    if not x.dtype.is_float:
        return x
    most = largest(x.dtype)
    x = where(isposinf(x), most if posinf is None else posinf, x)
    x = where(isneginf(x), -most if neginf is None else neginf, x)
    return where(isnan(x), nan or 0.0, x)


@operator(aten="isclose")
@once
def isclose(
    x: Node, other: Node, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Node:
    """Whether |x - other| <= atol + rtol * |other|, as bool; equal infinities are close."""
    a, b = meet(x, other)
    near = eq(a, b)
    if a.dtype.is_float:
        allowed = add(mul(g.abs(b), rtol), atol)
        near = g.or_(near, g.and_(isfinite(b), le(g.abs(g.sub(a, b)), allowed)))
    elif a.dtype is not DType.BOOL:
        wide = g.abs(g.sub(g.cast(a, DType.F64), g.cast(b, DType.F64)))
        near = g.or_(near, le(wide, add(mul(g.abs(g.cast(b, DType.F64)), rtol), atol)))
    return g.or_(near, g.and_(isnan(a), isnan(b))) if equal_nan else near


@operator(in_place=True, aten="deg2rad")
@once
def deg2rad(x: Node) -> Node:
    """An angle of degrees in radians."""
    return mul(as_float(x), math.pi / 180)


@operator(in_place=True, aten="rad2deg")
@once
def rad2deg(x: Node) -> Node:
    """An angle of radians in degrees."""
    return mul(as_float(x), 180 / math.pi)


@operator(in_place=True, aten="hypot")
@once
def hypot(x: Operand, y: Operand) -> Node:
    """sqrt(x * x + y * y), without overflow."""
    a, b = (g.abs(as_float(v)) for v in meet(x, y))
    top, low = g.maximum(a, b), g.minimum(a, b)
    ratio = g.div(low, where(eq(top, 0), 1.0, top))
    return where(isposinf(top), top, mul(top, g.sqrt(add(mul(ratio, ratio), 1.0))))


@operator(aten="logaddexp")
@once
def logaddexp(x: Operand, y: Operand) -> Node:
    """log(exp(x) + exp(y)), without overflow."""
    a, b = (as_float(v) for v in meet(x, y))
    same = g.and_(eq(a, b), isinf(a))  # of which the difference is NaN
    apart = g.sub(where(same, 0.0, a), where(same, 0.0, b))
    return add(g.maximum(a, b), g.log1p(g.exp(g.neg(g.abs(apart)))))


@operator(aten="logaddexp2")
@once
def logaddexp2(x: Operand, y: Operand) -> Node:
    """log2(2 ** x + 2 ** y), without overflow."""
    ln2 = math.log(2)
    return mul(logaddexp(mul(x, ln2), mul(y, ln2)), 1 / ln2)


@operator(in_place=True, aten="xlogy")
@once
def xlogy(x: Operand, y: Operand) -> Node:
    """x * log(y), but 0 where x is 0 and y is no NaN."""
    a, b = (as_float(v) for v in meet(x, y))
    has_log = g.and_(gt(b, 0), lt(b, math.inf))  # where the derivative by x is it, also at 0
    zero = g.and_(eq(a, 0), g.not_(g.or_(isnan(b), has_log)))
    return where(zero, 0.0, mul(a, g.log(where(zero, 1.0, b))))


@operator(in_place=True, aten="sinc")
@once
def sinc(x: Node) -> Node:
    """sin(pi x) / (pi x), 1 at 0."""
    v = mul(as_float(x), math.pi)
    zero = eq(v, 0)
    return where(zero, 1.0, div(g.sin(v), where(zero, 1.0, v)))


@operator(in_place=True, aten="logit")
@once
def logit(x: Node, eps: float | None = None) -> Node:
    """log(x / (1 - x)), of x held within [eps, 1 - eps]."""
    v = as_float(x)
    if eps is not None:
        v = clamp(v, eps, 1 - eps)
    return g.log(div(v, sub(1.0, v)))


@operator(in_place=True, aten="heaviside")
def heaviside(x: Node, values: Node) -> Node:
    """0 below 0, values at 0, 1 above."""
    a, b = meet(x, values)
    return g.where(eq(a, 0), b, g.cast(lt(0, a), a.dtype))


@operator(in_place=True, aten="float_power")
def float_power(x: Operand, exponent: Operand) -> Node:
    """x to the power of exponent, in float64."""
    a, b = (g.cast(v, DType.F64) if isinstance(v, Node) else v for v in (x, exponent))
    return pow(a, b)


@operator(in_place=True, aten="ldexp")
@once
def ldexp(x: Node, other: Node) -> Node:
    """x * 2 ** other."""
    return mul(x, g.exp2(as_float(other)))


@operator(in_place=True, aten="gcd")
def gcd(x: Node, other: Node) -> Node:
    """The greatest common divisor, by as many of Euclid's steps as the type may need."""
    a, b = (g.abs(v) if v.dtype.kind == "i" else v for v in meet(x, other))
    for _ in range(_EUCLID[a.dtype.bits]):
        done = eq(b, 0)
        a, b = g.where(done, a, b), where(done, 0, g.mod(a, b))
    return a


_EUCLID = {8: 13, 16: 24, 32: 47, 64: 93}
"""Steps for the two greatest Fibonacci numbers of so many bits."""


@operator(in_place=True, aten="lcm")
def lcm(x: Node, other: Node) -> Node:
    """The least common multiple; 0 where one is 0."""
    a, b = meet(x, other)
    multiple = g.mul(g.floordiv(a, gcd(a, b)), b)
    return g.abs(multiple) if a.dtype.kind == "i" else multiple


@operator(in_place=True, aten="abs")
def absolute(x: Node) -> Node:
    """The size of x."""
    return g.abs(x)


@operator(shares=True, aliases=("conj_physical", "resolve_conj", "resolve_neg"), aten="conj")
def conj(x: Node) -> Node:
    """x: there are no complex tensors."""
    return x


@operator(aten="angle")
def angle(x: Node) -> Node:
    """pi where x is negative, else 0."""
    v = as_float(x)
    return where(isnan(v), v, where(lt(v, 0), math.pi, g.full_like(v, 0)))


@operator(aten="fill")
def fill(x: Node, value: Operand) -> Node:
    """value everywhere, in x's shape and element type."""
    v = g.cast(value, x.dtype) if isinstance(value, Node) else g.const(value, x.dtype)
    return g.broadcast(v, x.shape)


def to(x: Node, dtype: DType) -> Node:
    """x converted: float to integer truncates, to bool is `!= 0`."""
    return g.cast(x, dtype)
