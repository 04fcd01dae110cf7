"""Functions that are series over the elementary ones.

Series are cut at the precision of the type in which they are computed. Rational approximations of
`atan` and `erfc` are those of Cephes (Moshier, 1989), the one of `erfinv` is Giles' (2010), with
steps of Newton's method for f64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from hal.core.dtypes import DType
from hal.tile import build as tile
from hal.tile.build import add, binary, bitcast, cast, fma, mul, sub, where
from hal.tile.build import unary as one
from hal.tile.node import Node
from stack import ops as g
from stack.ops.operator import Face, Lower, NDArray, Operator, OpKind
from stack.ops.rules import same
from stack.ops.sharding import elementwise
from stack.ops.table import FLOATS, INTS, NUMBERS, by, define, exactly, unary
from stack.ops.table import binary as two

__all__ = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cosh",
    "digamma",
    "erfc",
    "erfcx",
    "erfinv",
    "exp2",
    "expm1",
    "fmod",
    "lgamma",
    "log1p",
    "nextafter",
    "popcount",
    "sinh",
    "trunc",
    "zeta",
]

PI = math.pi


def _of(function: Callable[..., Node]) -> Lower:
    return lambda n, xs: function(*xs)


def _polynomial(x: Node, coefficients: Sequence[float]) -> Node:
    """The first coefficient belongs to the highest power."""
    total = _full(x, coefficients[0])
    for c in coefficients[1:]:
        total = fma(total, x, c)
    return total


def _is_negative(x: Node) -> Node:
    """Whether the sign bit is set."""
    return binary("lt", bitcast(x, DType.I64 if x.dtype is DType.F64 else DType.I32), 0)


def _signed(size: Node, like: Node) -> Node:
    """A value that is not negative with another one's sign."""
    return where(_is_negative(like), one("neg", size), size)


def _full(like: Node, value: float) -> Node:
    return tile.const(value, like.dtype, like.shape)


def _div(a: Node | float, b: Node | float) -> Node:
    return binary("div", a, b)


def _less(a: Node | float, b: Node | float) -> Node:
    return binary("lt", a, b)


# exponentials and logarithms


def _expm1(x: Node) -> Node:
    """(u - 1) x / log(u) for u = exp(x): the errors of u - 1 and of log(u) cancel (Kahan)."""
    u = one("exp", x)
    y = sub(u, 1.0)
    ratio = _div(mul(y, x), one("log", u))
    near = where(binary("eq", u, 1.0), x, ratio)
    far = binary("eq", u, math.inf)
    return where(far, u, where(binary("eq", y, -1.0), y, near))


def _log1p(x: Node) -> Node:
    """log(u) x / (u - 1) for u = 1 + x."""
    u = add(x, 1.0)
    ratio = _div(mul(one("log", u), x), sub(u, 1.0))
    small = binary("eq", u, 1.0)
    return where(binary("eq", x, math.inf), x, where(small, x, ratio))


def _sinh(x: Node) -> Node:
    size = one("abs", x)
    t, half = _expm1(size), one("exp", mul(size, 0.5))
    near = mul(add(t, _div(t, add(t, 1.0))), 0.5)
    return _signed(where(_less(size, 40.0), near, mul(mul(half, 0.5), half)), x)


def _cosh(x: Node) -> Node:
    half = one("exp", mul(one("abs", x), 0.5))
    near = mul(fma(half, half, _div(_div(1.0, half), half)), 0.5)
    return where(_less(half, 1e9), near, mul(mul(half, 0.5), half))


def _asinh(x: Node) -> Node:
    size = one("abs", x)
    square = mul(size, size)
    near = _log1p(add(size, _div(square, add(one("sqrt", add(square, 1.0)), 1.0))))
    far = add(one("log", size), math.log(2))
    return _signed(where(_less(size, 1e8), near, far), x)


def _acosh(x: Node) -> Node:
    t = sub(x, 1.0)
    near = _log1p(add(t, one("sqrt", fma(t, t, add(t, t)))))
    far = add(one("log", x), math.log(2))
    inside = binary("le", 1.0, x)
    return where(inside, where(_less(x, 1e8), near, far), math.nan)


def _atanh(x: Node) -> Node:
    size = one("abs", x)
    return _signed(mul(_log1p(_div(add(size, size), sub(1.0, size))), 0.5), x)


# angles

_ATAN_P = (
    -8.750608600031904122785e-1,
    -1.615753718733365076637e1,
    -7.500855792314704667340e1,
    -1.228866684490136173410e2,
    -6.485021904942025371773e1,
)
_ATAN_Q = (
    1.0,
    2.485846490142306297962e1,
    1.650270098316988542046e2,
    4.328810604912902668951e2,
    4.853903996359136964868e2,
    1.945506571482613964425e2,
)
_ATAN = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)


def _atan_size(t: Node) -> Node:
    """atan of what is not negative: beyond tan(3 pi / 8) by 1 / t, else beyond tan(pi / 8) by
    (t - 1) / (t + 1)."""
    big, middle = _less(math.sqrt(2) + 1, t), _less(math.sqrt(2) - 1, t)
    x = where(middle, _div(sub(t, 1.0), add(t, 1.0)), t)
    x = where(big, _div(-1.0, t), x)
    z = mul(x, x)
    if t.dtype is DType.F64:
        rest = _div(mul(z, _polynomial(z, _ATAN_P)), _polynomial(z, _ATAN_Q))
    else:
        rest = mul(_polynomial(z, _ATAN), z)
    base = where(big, _full(x, PI / 2), where(middle, _full(x, PI / 4), 0.0))
    return add(base, fma(x, rest, x))


def _atan(x: Node) -> Node:
    return _signed(_atan_size(one("abs", x)), x)


def _atan2(y: Node, x: Node) -> Node:
    wide, high = one("abs", x), one("abs", y)
    steep = _less(wide, high)
    low, top = where(steep, wide, high), where(steep, high, wide)
    ratio = where(binary("eq", low, top), 1.0, _div(low, top))
    a = _atan_size(where(binary("eq", top, 0.0), 0.0, ratio))
    a = where(steep, sub(PI / 2, a), a)
    a = _signed(where(_is_negative(x), sub(PI, a), a), y)
    nan = binary("or", binary("ne", x, x), binary("ne", y, y))
    return where(nan, math.nan, a)


# the error function

_ERFC_P = (
    2.46196981473530512524e-10,
    5.64189564831068821977e-1,
    7.46321056442269912687e0,
    4.86371970985681366614e1,
    1.96520832956077098242e2,
    5.26445194995477358631e2,
    9.34528527171957607540e2,
    1.02755188689515710272e3,
    5.57535335369399327526e2,
)
_ERFC_Q = (
    1.0,
    1.32281951154744992508e1,
    8.67072140885989742329e1,
    3.54937778887819891062e2,
    9.75708501743205489753e2,
    1.82390916687909736289e3,
    2.24633760818710981792e3,
    1.65666309194161350182e3,
    5.57535340817727675546e2,
)
_ERFC_R = (
    5.64189583547755073984e-1,
    1.27536670759978104416e0,
    5.01905042251180477414e0,
    6.16021097993053585195e0,
    7.40974269950448939160e0,
    2.97886665372100240670e0,
)
_ERFC_S = (
    1.0,
    2.26052863220117276590e0,
    9.39603524938001434673e0,
    1.20489539808096656605e1,
    1.70814450747565897222e1,
    9.60896809063285878198e0,
    3.36907645100081516050e0,
)


def _tail(size: Node) -> Node:
    """erfc(x) * exp(x * x) for x >= 1."""
    x = binary("min", size, 8.0)
    near = _div(_polynomial(x, _ERFC_P), _polynomial(x, _ERFC_Q))
    inverse = _div(1.0, size)  # both polynomials divided by powers of x, that they do not overflow
    numerator, denominator = _ERFC_R[::-1], _ERFC_S[::-1]
    far = mul(inverse, _div(_polynomial(inverse, numerator), _polynomial(inverse, denominator)))
    return where(_less(size, 8.0), near, far)


def _bell(x: Node) -> Node:
    """exp(-x * x), with what rounding took from the square."""
    square = mul(x, x)
    lost = fma(x, x, one("neg", square))
    value = one("exp", one("neg", square))
    return where(binary("eq", value, 0.0), 0.0, fma(value, one("neg", lost), value))


def _erfc(x: Node) -> Node:
    size = one("abs", x)
    far = mul(_bell(size), _tail(size))
    far = where(_is_negative(x), sub(2.0, far), far)
    return where(_less(size, 1.0), sub(1.0, one("erf", x)), far)


def _erfcx(x: Node) -> Node:
    size, square = one("abs", x), mul(x, x)
    grown = one("exp", square)
    grown = where(_less(grown, math.inf), fma(grown, fma(x, x, one("neg", square)), grown), grown)
    near = mul(grown, sub(1.0, one("erf", x)))
    far = where(_is_negative(x), sub(add(grown, grown), _tail(size)), _tail(size))
    return where(_less(size, 1.0), near, far)


_ERFINV_NEAR = (
    2.81022636e-08,
    3.43273939e-07,
    -3.5233877e-06,
    -4.39150654e-06,
    0.00021858087,
    -0.00125372503,
    -0.00417768164,
    0.246640727,
    1.50140941,
)
_ERFINV_FAR = (
    -0.000200214257,
    0.000100950558,
    0.00134934322,
    -0.00367342844,
    0.00573950773,
    -0.0076224613,
    0.00943887047,
    1.00167406,
    2.83297682,
)


def _erfinv(x: Node) -> Node:
    w = one("neg", one("log", mul(sub(1.0, x), add(x, 1.0))))
    near = _polynomial(sub(w, 2.5), _ERFINV_NEAR)
    far = _polynomial(sub(one("sqrt", w), 3.0), _ERFINV_FAR)
    y = mul(where(_less(w, 5.0), near, far), x)
    for _ in range(2 if x.dtype is DType.F64 else 0):
        slope = mul(_bell(y), 2 / math.sqrt(PI))
        size = one("abs", y)
        off = sub(_erfc(size), sub(1.0, one("abs", x)))
        value = _div(off, slope)
        y = add(y, where(_is_negative(x), one("neg", value), value))
    return where(binary("eq", one("abs", x), 1.0), mul(x, math.inf), y)


# the gamma function

_SHIFT = 8
_STIRLING = (
    1 / 12,
    -1 / 360,
    1 / 1260,
    -1 / 1680,
    1 / 1188,
    -691 / 360360,
    1 / 156,
    -3617 / 122400,
)
"""B(2k) / (2k (2k - 1)), of 1 / x ** (2k - 1)."""
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)


def _terms(x: Node) -> int:
    return 8 if x.dtype is DType.F64 else 4


def _sine(x: Node) -> Node:
    """sin(pi x), exact in where it is 0."""
    r = sub(x, one("round", x))
    odd = binary("ne", sub(one("round", x), mul(one("floor", mul(one("round", x), 0.5)), 2.0)), 0.0)
    s = one("sin", mul(r, PI))
    return where(odd, one("neg", s), s)


def _lgamma_above(x: Node) -> Node:
    """For x >= 1/2: Stirling's series, behind a product for small x."""
    near = _less(x, float(_SHIFT))
    product = x
    for k in range(1, _SHIFT):
        product = mul(product, add(x, float(k)))
    v = where(near, add(x, float(_SHIFT)), x)
    inverse = _div(1.0, v)
    series = mul(_polynomial(mul(inverse, inverse), _STIRLING[: _terms(x)][::-1]), inverse)
    log = one("log", v)
    value = add(sub(mul(sub(v, 0.5), sub(log, 1.0)), 0.5), add(series, 0.5 * math.log(2 * PI)))
    value = sub(value, where(near, one("log", product), 0.0))
    exact = binary("or", binary("eq", x, 1.0), binary("eq", x, 2.0))
    return where(exact, 0.0, where(binary("eq", x, math.inf), x, value))


def _lgamma(x: Node) -> Node:
    low = _less(x, 0.5)
    above = _lgamma_above(where(low, sub(1.0, x), x))
    sine = one("abs", _sine(x))
    below = sub(sub(math.log(PI), one("log", sine)), above)
    pole = binary("and", low, binary("eq", x, one("floor", x)))
    return where(pole, math.inf, where(low, below, above))


def _digamma(x: Node) -> Node:
    low = _less(x, 0.5)
    v = where(low, sub(1.0, x), x)
    near, shifted = _less(v, float(_SHIFT)), _full(x, 0.0)
    for k in range(_SHIFT):
        shifted = add(shifted, _div(1.0, add(v, float(k))))
    u = where(near, add(v, float(_SHIFT)), v)
    inverse = _div(1.0, u)
    square = mul(inverse, inverse)
    weights = [b / (2 * k + 2) for k, b in enumerate(_BERNOULLI[: _terms(x)])]
    series = mul(_polynomial(square, weights[::-1]), square)
    above = sub(sub(one("log", u), mul(inverse, 0.5)), series)
    above = sub(above, where(near, shifted, 0.0))
    r = mul(sub(x, one("round", x)), PI)
    below = sub(above, mul(_div(one("cos", r), one("sin", r)), PI))
    pole = binary("and", low, binary("eq", x, one("floor", x)))
    at_zero = where(_is_negative(x), _full(x, math.inf), -math.inf)
    at_pole = where(binary("eq", x, 0.0), at_zero, math.nan)
    return where(pole, at_pole, where(low, below, above))


_TERMS = 20
"""Terms of the zeta function that are added up before its series takes over."""


def _zeta(n: Node, xs: tuple[Node, ...]) -> Node:
    """The first terms, and the rest by Euler's and Maclaurin's formula; below 1/2 by reflection for
    the order 2."""
    (x,), order = xs, int(n["order"])
    low = _less(x, 0.5)
    v = where(low, sub(1.0, x), x) if order == 2 else x
    total = _full(x, 0.0)
    for k in range(_TERMS):
        total = add(total, _inverse_power(add(v, float(k)), order))
    u = add(v, float(_TERMS))
    inverse = _div(1.0, u)
    square, power = mul(inverse, inverse), _inverse_power(u, order)
    weights, rising = [], float(order)
    for k, b in enumerate(_BERNOULLI[: _terms(x)]):
        weights.append(b / math.factorial(2 * k + 2) * rising)
        rising *= (order + 2 * k + 1) * (order + 2 * k + 2)
    rest = fma(_polynomial(square, weights[::-1]), inverse, fma(u, 1 / (order - 1), 0.5))
    total = where(binary("eq", x, math.inf), 0.0, fma(rest, power, total))
    if order != 2:
        return total
    cosecant = _div(PI, _sine(x))
    return where(low, sub(mul(cosecant, cosecant), total), total)


def _inverse_power(x: Node, order: int) -> Node:
    inverse = _div(1.0, x)
    power = inverse
    for _ in range(order - 1):
        power = mul(power, inverse)
    return power


# bits


_BITS = {8: DType.I8, 16: DType.I16, 32: DType.I32, 64: DType.I64}


def _nextafter(n: Node, xs: tuple[Node, ...]) -> Node:
    x, y = xs
    bits = _BITS[n.dtype.bits]
    up = binary("eq", _less(x, y), _less(0.0, x))
    step = where(up, tile.const(1, bits, x.shape), -1)
    moved = bitcast(add(bitcast(cast(x, n.dtype), bits), step), n.dtype)
    least = cast(bitcast(tile.const(1, bits, x.shape), n.dtype), x.dtype)
    least = where(_less(y, 0.0), one("neg", least), least)
    moved = where(binary("eq", x, 0.0), least, cast(moved, x.dtype))
    nan = binary("or", binary("ne", x, x), binary("ne", y, y))
    return where(nan, math.nan, where(binary("eq", x, y), y, moved))


def _popcount(n: Node, xs: tuple[Node, ...]) -> Node:
    (x,) = xs
    v = binary("and", cast(x, DType.U64), (1 << x.dtype.bits) - 1)
    for shift, mask in ((1, 0x5555555555555555), (2, 0x3333333333333333)):
        v = add(binary("and", v, mask), binary("and", binary("shr", v, shift), mask))
    v = binary("and", add(v, binary("shr", v, 4)), 0x0F0F0F0F0F0F0F0F)
    return cast(binary("shr", mul(v, 0x0101010101010101), 56), x.dtype)


# references


def _each(function: Callable[[float], float]) -> Callable[..., NDArray]:
    return np.vectorize(function, otypes=[np.float64])


def _lgamma_of(x: float) -> float:
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return math.inf
    return math.lgamma(x)


def _digamma_series(x: float) -> float:
    total = 0.0
    while x < 20:
        total, x = total - 1 / x, x + 1
    square = 1 / (x * x)
    tail = sum(b / (2 * k + 2) * square ** (k + 1) for k, b in enumerate(_BERNOULLI))
    return total + math.log(x) - 0.5 / x - tail


def _digamma_of(x: float) -> float:
    if x == 0:
        return -math.copysign(math.inf, x)
    if x != x or x == -math.inf or (x < 0 and x == math.floor(x)):
        return math.nan
    if x == math.inf:
        return x
    r = x - round(x)
    return _digamma_series(x) if x >= 0.5 else _digamma_series(1 - x) - PI / math.tan(PI * r)


def _zeta_of(order: int, x: float) -> float:
    if x != x or math.isinf(x):
        return 0.0 if x == math.inf else math.nan
    if x <= 0 and x == math.floor(x):
        return math.inf
    if order == 2 and x < 0.5:
        return (PI / math.sin(PI * (x - round(x)))) ** 2 - _zeta_of(2, 1 - x)
    total = 0.0
    while x < 30:
        total, x = total + x**-order, x + 1
    total += x ** (1 - order) / (order - 1) + 0.5 * x**-order
    rising = float(order)
    for k, b in enumerate(_BERNOULLI):
        total += b / math.factorial(2 * k + 2) * rising * x ** (-order - 2 * k - 1)
        rising *= (order + 2 * k + 1) * (order + 2 * k + 2)
    return total


def _erfinv_of(x: float) -> float:
    if x == 0:
        return x
    if not -1 < x < 1:
        return math.copysign(math.inf, x) if abs(x) == 1 else math.nan
    y, size = 0.0, abs(x)
    low, high = 0.0, 6.0
    for _ in range(80):
        y = (low + high) / 2
        low, high = (y, high) if math.erfc(y) > 1 - size else (low, y)
    return math.copysign(y, x)


def _erfcx_of(x: float) -> float:
    if x < -26.6:
        return math.inf
    if x < 20:
        return math.exp(x * x) * math.erfc(x)
    square = 2 * x * x
    return (1 - 1 / square + 3 / square**2 - 15 / square**3 + 105 / square**4) / (x * math.sqrt(PI))


# rows


def _one_over(n: Node) -> Node:
    return g.full_like(n, 1)


def _times(d: Node, factor: Node) -> tuple[Node]:
    return (g.mul(d, factor),)


_WITHIN, _BEYOND, _POSITIVE = ((-0.9, 0.9),), ((1.1, 3.0),), ((0.6, 3.0),)

expm1: Operator = unary(
    "expm1",
    FLOATS,
    "e to the x, less 1, exact near 0",
    exactly(np.expm1),
    lambda n, d: _times(d, g.add(n, _one_over(n))),
    lower=_of(_expm1),
    expensive=True,
    face=Face(in_place=True, aten="expm1"),
)
log1p: Operator = unary(
    "log1p",
    FLOATS,
    "the natural logarithm of 1 + x, exact near 0",
    exactly(np.log1p),
    lambda n, d: (g.div(d, g.add(n.srcs[0], _one_over(n))),),
    lower=_of(_log1p),
    expensive=True,
    smooth=_POSITIVE,
    face=Face(in_place=True, aten="log1p"),
)
exp2: Operator = unary(
    "exp2",
    FLOATS,
    "2 to the x",
    exactly(np.exp2),
    lambda n, d: _times(d, g.mul(n, g.full_like(n, math.log(2)))),
    lower=lambda n, xs: binary("pow", 2.0, xs[0]),
    expensive=True,
    face=Face(in_place=True, aten="exp2"),
)
sinh: Operator = unary(
    "sinh",
    FLOATS,
    "the hyperbolic sine of x",
    exactly(np.sinh),
    lambda n, d: _times(d, cosh(n.srcs[0])),
    lower=_of(_sinh),
    expensive=True,
    face=Face(in_place=True, aten="sinh", onnx="Sinh"),
)
cosh: Operator = unary(
    "cosh",
    FLOATS,
    "the hyperbolic cosine of x",
    exactly(np.cosh),
    lambda n, d: _times(d, sinh(n.srcs[0])),
    lower=_of(_cosh),
    expensive=True,
    face=Face(in_place=True, aten="cosh", onnx="Cosh"),
)
asinh: Operator = unary(
    "asinh",
    FLOATS,
    "what x is the hyperbolic sine of",
    exactly(np.arcsinh),
    lambda n, d: _times(d, g.rsqrt(g.add(g.mul(n.srcs[0], n.srcs[0]), _one_over(n)))),
    lower=_of(_asinh),
    expensive=True,
    face=Face(aliases=("arcsinh",), in_place=True, aten="asinh", onnx="Asinh"),
)
acosh: Operator = unary(
    "acosh",
    FLOATS,
    "what x is the hyperbolic cosine of; NaN below 1",
    exactly(np.arccosh),
    lambda n, d: _times(d, g.rsqrt(g.sub(g.mul(n.srcs[0], n.srcs[0]), _one_over(n)))),
    lower=_of(_acosh),
    expensive=True,
    smooth=_BEYOND,
    face=Face(aliases=("arccosh",), in_place=True, aten="acosh", onnx="Acosh"),
)
atanh: Operator = unary(
    "atanh",
    FLOATS,
    "what x is the hyperbolic tangent of; NaN beyond 1",
    exactly(np.arctanh),
    lambda n, d: (g.div(d, g.sub(_one_over(n), g.mul(n.srcs[0], n.srcs[0]))),),
    lower=_of(_atanh),
    expensive=True,
    smooth=_WITHIN,
    face=Face(aliases=("arctanh",), in_place=True, aten="atanh", onnx="Atanh"),
)
asin: Operator = unary(
    "asin",
    FLOATS,
    "the angle in radians whose sine is x",
    exactly(np.arcsin),
    lambda n, d: _times(d, g.rsqrt(g.sub(_one_over(n), g.mul(n.srcs[0], n.srcs[0])))),
    lower=_of(lambda x: _atan(_div(x, one("sqrt", mul(sub(1.0, x), add(x, 1.0)))))),
    expensive=True,
    smooth=_WITHIN,
    face=Face(aliases=("arcsin",), in_place=True, aten="asin", onnx="Asin"),
)
acos: Operator = unary(
    "acos",
    FLOATS,
    "the angle in radians whose cosine is x",
    exactly(np.arccos),
    lambda n, d: (g.neg(g.mul(d, g.rsqrt(g.sub(_one_over(n), g.mul(n.srcs[0], n.srcs[0]))))),),
    lower=_of(lambda x: mul(_atan_size(one("sqrt", _div(sub(1.0, x), add(x, 1.0)))), 2.0)),
    expensive=True,
    smooth=_WITHIN,
    face=Face(aliases=("arccos",), in_place=True, aten="acos", onnx="Acos"),
)
atan: Operator = unary(
    "atan",
    FLOATS,
    "the angle in radians whose tangent is x",
    exactly(np.arctan),
    lambda n, d: (g.div(d, g.add(g.mul(n.srcs[0], n.srcs[0]), _one_over(n))),),
    lower=_of(_atan),
    expensive=True,
    face=Face(aliases=("arctan",), in_place=True, aten="atan", onnx="Atan"),
)
erfc: Operator = unary(
    "erfc",
    FLOATS,
    "1 less the error function of x, exact where that is nearly 1",
    exactly(_each(math.erfc)),
    lambda n, d: _times(
        d, g.mul(g.exp(g.neg(g.mul(n.srcs[0], n.srcs[0]))), g.full_like(n, -2 / math.sqrt(PI)))
    ),
    lower=_of(_erfc),
    expensive=True,
    face=Face(in_place=True, aten="erfc"),
)
erfcx: Operator = unary(
    "erfcx",
    FLOATS,
    "erfc(x) times exp(x * x)",
    exactly(_each(_erfcx_of)),
    lambda n, d: _times(
        d, g.sub(g.mul(g.mul(n, n.srcs[0]), g.full_like(n, 2)), g.full_like(n, 2 / math.sqrt(PI)))
    ),
    lower=_of(_erfcx),
    expensive=True,
)
erfinv: Operator = unary(
    "erfinv",
    FLOATS,
    "what x is the error function of",
    exactly(_each(_erfinv_of)),
    lambda n, d: _times(d, g.mul(g.exp(g.mul(n, n)), g.full_like(n, math.sqrt(PI) / 2))),
    lower=_of(_erfinv),
    expensive=True,
    smooth=_WITHIN,
    face=Face(in_place=True, aten="erfinv"),
)
lgamma: Operator = unary(
    "lgamma",
    FLOATS,
    "the logarithm of the size of the gamma function of x",
    exactly(_each(_lgamma_of)),
    lambda n, d: _times(d, digamma(n.srcs[0])),
    lower=_of(_lgamma),
    expensive=True,
    smooth=_POSITIVE,
    face=Face(in_place=True, aten="lgamma"),
)
digamma: Operator = unary(
    "digamma",
    FLOATS,
    "the derivative of lgamma",
    exactly(_each(_digamma_of)),
    lambda n, d: _times(d, zeta(2, n.srcs[0])),
    lower=_of(_digamma),
    expensive=True,
    smooth=_POSITIVE,
    face=Face(in_place=True, aten="digamma"),
)
_ZETA = define(
    "zeta",
    OpKind.ELEMENTWISE,
    FLOATS,
    "the sum of 1 / (x + k) ** order over k = 0, 1, ..., for a whole order of at least 2 and x "
    "above -10",
    1,
    same,
    lambda n, xs: exactly(_each(partial(_zeta_of, int(n["order"]))))(n, xs),
    lambda n, d: _times(d, g.mul(zeta(n["order"] + 1, n.srcs[0]), g.full_like(n, -n["order"]))),
    attrs=frozenset({"order"}),
    sharding=elementwise(),
    lower=_zeta,
    expensive=True,
)


def zeta(order: int, x: Node) -> Node:
    """The sum of 1 / (x + k) ** order over k = 0, 1, ...: Hurwitz' zeta function."""
    return _ZETA(x, order=order)


trunc: Operator = unary(
    "trunc",
    FLOATS,
    "the nearest whole number towards 0",
    by(np.trunc),
    lower=_of(lambda x: where(_less(x, 0.0), one("ceil", x), one("floor", x))),
)
popcount: Operator = unary(
    "popcount",
    INTS,
    "how many bits are set",
    lambda n, xs: np.bitwise_count(xs[0].view(f"u{xs[0].itemsize}")).astype(xs[0].dtype),
    lower=_popcount,
)
atan2: Operator = two(
    "atan2",
    FLOATS,
    "the angle in radians of the point with height a at b, from -pi to pi",
    exactly(np.arctan2),
    lambda n, d: _atan2_gradient(n, d),
    lower=_of(_atan2),
    expensive=True,
    smooth=((0.5, 2.0), (0.5, 2.0)),
    face=Face(aliases=("arctan2",), in_place=True, aten="atan2"),
)
fmod: Operator = two(
    "fmod",
    NUMBERS,
    "what is left of a by whole multiples of b, with a's sign; integers by zero give 0",
    by(np.fmod),
    lambda n, d: (d, g.neg(g.mul(d, trunc(g.div(*n.srcs))))),
    lower=lambda n, xs: binary("rem", *xs),
    smooth=(None, (0.5, 2.0)),
    face=Face(in_place=True, aten="fmod", onnx="Mod"),
)
nextafter: Operator = two(
    "nextafter",
    FLOATS,
    "the next float after a towards b",
    lambda n, xs: np.asarray(np.nextafter(*xs)),
    lambda n, d: (d, g.full_like(d, 0)),
    lower=_nextafter,
    face=Face(in_place=True, aten="nextafter"),
)


def _atan2_gradient(n: Node, d: Node) -> tuple[Node, Node]:
    y, x = n.srcs
    part = g.div(d, g.add(g.mul(x, x), g.mul(y, y)))
    return g.mul(part, x), g.neg(g.mul(part, y))
