"""Roots and powers of f32."""

from __future__ import annotations

import math

from hal.core.dtypes import DType
from hal.tile.build import add, binary, bitcast, cast, fma, mul, sub, unary, where
from hal.tile.node import Node
from stack.compiler.text.series import clamp, polynomial

I32, I64 = DType.I32, DType.I64


def rsqrt(x: Node) -> Node:
    return unary("recip", unary("sqrt", x))


def _log_f64(a: Node) -> Node:
    """log, to 1e-14, of a positive f64 that a f32 can hold: the series of atanh of
    (m - 1) / (m + 1), twice."""
    bits = bitcast(a, I64)
    e = binary("and", sub(bits, 0x3FE5555555555555), -1 << 52)
    m = bitcast(sub(bits, e), DType.F64)
    s = binary("div", sub(m, 1.0), add(m, 1.0))
    series = polynomial(mul(s, s), [2.0 / (2 * k + 1) for k in range(10)])
    exponent = cast(cast(binary("shr", e, 52), I32), DType.F64)
    return fma(exponent, math.log(2), mul(s, series))


def _exp_f64(t: Node) -> Node:
    """exp to 1e-11, for arguments whose result a f32 can hold."""
    t = clamp(t, -104.0, 89.0)
    shifted = fma(t, 1 / math.log(2), _F64_ROUNDER)
    r = fma(sub(shifted, _F64_ROUNDER), -math.log(2), t)
    power = bitcast(binary("shl", bitcast(shifted, I64), 52), DType.F64)
    return mul(polynomial(r, [1.0 / math.factorial(k) for k in range(10)]), power)


_F64_ROUNDER = 1.5 * 2.0**52 + 1023.0
"""Rounds an f64 to an integer and adds the exponent's bias."""


def pow(x: Node, y: Node) -> Node:
    """exp(y * log|x|) in f64; then the rules of IEEE 754 for signs, ones and infinities."""
    size = unary("abs", x)
    log_size = _log_f64(cast(size, DType.F64))
    log_size = where(binary("eq", x, 0.0), -math.inf, log_size)
    log_size = where(binary("lt", size, math.inf), log_size, cast(size, DType.F64))
    result = cast(_exp_f64(mul(cast(y, DType.F64), log_size)), DType.F32)
    whole = binary("eq", unary("floor", y), y)
    half = mul(y, 0.5)
    odd = binary("and", whole, binary("ne", unary("floor", half), half))
    negative = binary("lt", bitcast(x, I32), 0)
    result = where(binary("and", odd, negative), unary("neg", result), result)
    undefined = binary("and", binary("lt", x, 0.0), unary("not", whole))
    undefined = binary("and", undefined, binary("lt", size, math.inf))
    result = where(undefined, math.nan, result)
    still = binary("and", binary("eq", size, 1.0), binary("eq", unary("abs", y), math.inf))
    one = binary("or", binary("or", binary("eq", x, 1.0), binary("eq", y, 0.0)), still)
    return where(one, 1.0, result)
