"""Functions that hardware lacks, as expressions over operations that it has.

All are of f32, rsqrt of f64 as well. Errors are measured over all of f32 against f64
by `tests/compiler/llvm/test_math.py` and stated in `ULP`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from hal.core.dtypes import DType
from hal.tile.build import add, binary, bitcast, cast, fma, mul, sub, unary, where
from hal.tile.node import Node, node
from stack.compiler.text.powers import pow, rsqrt
from stack.compiler.text.series import clamp, full, polynomial, polynomial_in_pairs

ULP: Mapping[str, float] = MappingProxyType(
    {
        "exp": 1.6,
        "log": 0.9,
        "sin": 1.5,
        "cos": 1.5,
        "tanh": 2.0,
        "erf": 2.1,
        "rsqrt": 1.5,
        "pow": 0.51,
    }
)
"""Largest errors of the f32 functions, in units in the last place."""

TRIGONOMETRIC_LIMIT = 48000.0
"""Up to this magnitude the expansions of sin and cos hold; the renderer calls a library beyond."""

_ROUNDER = 12582912.0  # 1.5 * 2**23: adding it rounds an f32 to an integer, kept in its low bits
_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.42860682030941723212e-06

I32 = DType.I32


# exp and log

_EXP = (
    1.0,
    1.0,
    0.5000003576278687,
    0.1666661649942398,
    0.04166119918227196,
    0.008335966616868973,
    0.001410544733516872,
    0.00019630206224974245,
)
"""exp(r) for |r| <= ln 2."""

_EXPONENT_ROUNDER = _ROUNDER + 127.0
"""Rounds and adds the exponent's bias in one."""


def exp(x: Node) -> Node:
    """exp(r) * 2**n * 2**n: each power is a normal number, and the last product rounds to infinity,
    zero or a denormal as it should."""
    x = clamp(x, -104.0, 89.0)
    shifted = fma(x, 0.5 / math.log(2), _EXPONENT_ROUNDER)
    n = sub(shifted, _EXPONENT_ROUNDER)
    r = fma(n, -2 * _LN2_LOW, fma(n, -2 * _LN2_HIGH, x))
    power = bitcast(binary("shl", bitcast(shifted, I32), 23), DType.F32)
    return mul(mul(polynomial(r, _EXP), power), power)


_EXP_OF_LESS = (
    1.0,
    1.0,
    0.49999991059303284,
    0.1666644811630249,
    0.04166853427886963,
    0.008373168297111988,
    0.001381587004289031,
)
"""exp(r) for |r| <= ln(2) / 2."""


def scaled_exp(x: Node) -> Node:
    """exp(r) * 2**n, of which `scale` makes any number, infinity, zero or a denormal: a term less
    than `exp`, and within 1.0 units in the last place. On Zen 4 softmax takes 0.88 of the time."""
    x = clamp(x, -104.0, 89.0)
    n = sub(fma(x, 1 / math.log(2), _ROUNDER), _ROUNDER)
    r = fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, x))
    return node("scale", x.type, (polynomial(r, _EXP_OF_LESS), n))


def log(x: Node) -> Node:
    """x = m * 2**e with m in [2/3, 4/3]; log(m) by a polynomial in m - 1, which is exact."""
    tiny = binary("lt", x, 2.0**-126)
    bits = bitcast(where(tiny, mul(x, 2.0**23), x), I32)
    e = binary("and", sub(bits, 0x3F2AAAAB), -0x800000)
    m = sub(bitcast(sub(bits, e), DType.F32), 1.0)
    i = fma(cast(e, DType.F32), 2.0**-23, where(tiny, full(x, -23.0), 0.0))
    s = mul(m, m)
    r = polynomial(s, (-0.249996200, -0.166846052, -0.121484190, -0.130310059))
    t = polynomial(s, (0.200120345, 0.139814854, 0.140869141))
    r = fma(t, m, r)
    r = fma(fma(r, m, 0.333331972), m, -0.5)
    r = fma(i, 0.693147182, fma(r, s, m))
    usual = binary("and", binary("lt", 0.0, x), binary("lt", x, math.inf))
    edge = where(binary("eq", x, 0.0), full(x, -math.inf), x)
    return where(usual, r, where(binary("lt", x, 0.0), full(x, math.nan), edge))


# trigonometry


def _quadrant(x: Node, turn: int) -> Node:
    """sin(x + turn * pi/2)."""
    # x = r + q * pi/2 with |r| <= pi/4: (r, the i32 q modulo some power of two)
    shifted = fma(x, 0.636619747, _ROUNDER)
    n = sub(shifted, _ROUNDER)
    r = fma(n, -1.57079601, x)
    r = fma(n, -3.13916473e-7, r)
    r = fma(n, -5.39030253e-15, r)
    q = bitcast(shifted, I32)
    q = add(q, turn) if turn else q
    s = mul(r, r)
    sine = polynomial(s, (-1.66666672e-1, 8.33338592e-3, -1.98559923e-4, 2.86567956e-6))
    sine = fma(sine, mul(r, s), r)
    cosine = polynomial(s, (1.0, -5.0e-1, 4.16666567e-2, -1.38877297e-3, 2.44677067e-5))
    value = where(binary("eq", binary("and", q, 1), 0), sine, cosine)
    sign = binary("shl", binary("and", q, 2), 30)
    return bitcast(binary("xor", bitcast(value, I32), sign), DType.F32)


def sin(x: Node) -> Node:
    return _quadrant(x, 0)


def cos(x: Node) -> Node:
    return _quadrant(x, 1)


# saturating functions

_TANH_NEAR = (
    -0.3333294689655304,
    0.1332072913646698,
    -0.05267200991511345,
    0.01643787883222103,
)
"""(tanh(x) / x - 1) / x**2 as a polynomial in x**2 for |x| < 0.55."""
_EXP_SHORT = (
    1.0000001192092896,
    1.0000001192092896,
    0.4999856948852539,
    0.1666562408208847,
    0.04194190725684166,
    0.008441182784736156,
)
"""exp(r) for |r| <= ln(2) / 2, good for tanh, which flattens its error."""


def tanh(x: Node) -> Node:
    """A polynomial near zero; beyond, 1 - 2 / (exp(2|x|) + 1) and x's sign."""
    size = binary("min", unary("abs", x), 10.0)
    shifted = fma(size, 2 / math.log(2), _EXPONENT_ROUNDER)
    r = fma(sub(shifted, _EXPONENT_ROUNDER), -math.log(2), add(size, size))
    power = bitcast(binary("shl", bitcast(shifted, I32), 23), DType.F32)
    far = sub(1.0, binary("div", 2.0, fma(polynomial(r, _EXP_SHORT), power, 1.0)))
    s = mul(x, x)
    near = fma(mul(x, s), polynomial(s, _TANH_NEAR), x)
    return where(binary("lt", size, 0.55), near, _with_sign(far, x))


def _with_sign(size: Node, x: Node) -> Node:
    """A value that is not negative, with x's sign."""
    sign = binary("and", bitcast(x, I32), -0x80000000)
    return bitcast(binary("or", bitcast(size, I32), sign), DType.F32)


_ERF = (
    0.12837916612625122,
    0.5570429563522339,
    0.016712335869669914,
    -0.052714113146066666,
    -0.0014919814420863986,
    0.004102712031453848,
    -0.0007109853904694319,
    3.840375575236976e-05,
)
"""8 (1 - (1 - erf(x)) ** (1 / 8)) / x - 1 for 0 <= x <= 4: of all powers the one that needs the
fewest terms."""


def erf(x: Node) -> Node:
    """1 - (1 - v / 8)**8 and x's sign: v by a polynomial, then three squarings, 1 - (1 - v / 2)**2
    being v - v**2 / 4, which is never more than 1. Near zero all of these are nearly x, so that
    what is added to x carries their errors, and denormals keep their last bit."""
    size = binary("min", unary("abs", x), 4.0)
    more = mul(size, polynomial_in_pairs(size, _ERF))
    for part in (1 / 16, 1 / 8):
        value = add(size, more)
        more = fma(mul(value, -part), value, more)
    value = add(size, more)
    return _with_sign(fma(mul(value, -1 / 4), value, value), x)


_ERF_BESIDE_ONE = ((1 + _ERF[0]) / 8, *(c / 8 for c in _ERF[1:]))
"""(1 - (1 - erf(x)) ** (1 / 8)) / x, by the same polynomial."""


def erf_and_one(x: Node) -> Node:
    """erf(x) + 1, as `GELU` and the normal distribution have it, within 2e-7: as `erf` by an eighth
    root, without what `erf` takes to be exact near zero, which is lost beside 1. Its steps are the
    fewest, one after the other: with pairs of them GELU took 5 to 9 % longer on Zen 3."""
    size = binary("min", unary("abs", x), 4.0)
    value = mul(size, polynomial(size, _ERF_BESIDE_ONE))
    for _ in range(2):  # 1 - (1 - v)**2
        value = fma(unary("neg", value), value, add(value, value))
    rest = sub(1.0, value)
    return add(_with_sign(fma(unary("neg", rest), rest, 1.0), x), 1.0)


FUNCTIONS: Mapping[str, Callable[..., Node]] = {
    "exp": exp,
    "log": log,
    "sin": sin,
    "cos": cos,
    "tanh": tanh,
    "erf": erf,
    "rsqrt": rsqrt,
    "pow": pow,
}
"""Each by simpler operations."""
