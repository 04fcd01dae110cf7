"""What tile operations give, one number at a time in Python's own arithmetic."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from fractions import Fraction

import ml_dtypes
import mpmath
import numpy as np

from hal.core.dtypes import DType
from hal.tile.numeric import NUMPY

Number = int | float | bool

SAMPLES = {
    "f": [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -3.5, 7.25, 1e-3, 300.0, math.inf, -math.inf, math.nan],
    "b": [False, True],
}
BY_BITS = [0, 1, 2, 3, 7, 63, 100]


def samples(dtype: DType) -> list[Number]:
    """Numbers worth trying, all exact in the type but 1e-3."""
    if not dtype.is_int:
        return [from_numpy(NUMPY[dtype].type(x)) for x in SAMPLES[dtype.kind]]
    low, high = limits(dtype)
    signed = [-1, -2, -7, -100] if low else []
    return [*BY_BITS, *signed, low, low + 1, high - 1, high]


def limits(dtype: DType) -> tuple[int, int]:
    """The range of an integer type."""
    if dtype.kind == "u":
        return 0, 2**dtype.bits - 1
    return -(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1


def from_numpy(x: np.generic) -> Number:
    return float(x) if x.dtype.kind in "fV" else x.item()


def wrap(x: int, dtype: DType) -> int:
    """x modulo 2**bits in the type's range."""
    low = limits(dtype)[0]
    return (x - low) % 2**dtype.bits + low


def rounded(x: float, dtype: DType) -> float:
    """A double rounded to f32 and from there to narrower types."""
    if dtype is DType.F64:
        return x
    with np.errstate(all="ignore"):
        single = np.float32(x)
        return float(single if dtype is DType.F32 else single.astype(NUMPY[dtype]))


def _divide(a: float, b: float) -> float:
    if b != 0:
        return a / b
    return (
        math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)
    )


def _remainder(a: float, b: float) -> float:
    return math.nan if b == 0 or math.isinf(a) else math.fmod(a, b)


def _power(a: float, b: float) -> float:
    try:
        return math.pow(a, b)
    except OverflowError:
        return -math.inf if a < 0 and b % 2 == 1 else math.inf
    except ValueError:
        return math.nan if a != 0 else math.inf * (math.copysign(1, a) if b % 2 == 1 else 1)


def _guard(f: Callable[[float], float], at_pole: float = math.nan) -> Callable[[float], float]:
    def guarded(x: float) -> float:
        try:
            return float(f(x))
        except OverflowError:
            return math.inf
        except ValueError:
            return at_pole if x == 0 else math.nan

    return guarded


def _whole(f: Callable[[float], int]) -> Callable[[float], float]:
    return lambda x: math.copysign(f(x), x) if math.isfinite(x) else x


def _nan_or(f: Callable[[float, float], float]) -> Callable[[float, float], float]:
    return lambda a, b: math.nan if a != a or b != b else f(a, b)


FLOAT: dict[str, Callable[..., float]] = {
    "neg": operator.neg,
    "abs": abs,
    "exp": _guard(math.exp),
    "log": _guard(math.log, -math.inf),
    "sin": _guard(math.sin),
    "cos": _guard(math.cos),
    "tanh": math.tanh,
    "erf": math.erf,
    "sqrt": lambda x: x if x == 0 else _guard(math.sqrt)(x),
    "rsqrt": lambda x: _divide(1.0, x if x == 0 else _guard(math.sqrt)(x)),
    "recip": lambda x: _divide(1.0, x),
    "floor": _whole(math.floor),
    "ceil": _whole(math.ceil),
    "round": _whole(round),
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": _divide,
    "rem": _remainder,
    "pow": _power,
    "min": _nan_or(min),
    "max": _nan_or(max),
}


def _quotient(a: int, b: int) -> int:
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


INTEGER: dict[str, Callable[..., int]] = {
    "neg": operator.neg,
    "abs": abs,
    "not": operator.invert,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": _quotient,
    "rem": lambda a, b: 0 if b == 0 else a - _quotient(a, b) * b,
    "min": min,
    "max": max,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}

COMPARE = {"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le}

BOOL: dict[str, Callable[..., bool]] = {
    "not": operator.not_,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "xor": operator.ne,
    "min": lambda a, b: a and b,
    "max": lambda a, b: a or b,
}


def _shift(op: str, a: int, b: int, dtype: DType) -> int:
    amount = b if 0 <= b < dtype.bits else dtype.bits
    return a << amount if op == "shl" else a >> amount


def compute(op: str, dtype: DType, *xs: Number) -> Number:
    """The result of an elementwise operation on numbers of that type."""
    if op in COMPARE:
        return COMPARE[op](*xs)
    if op == "fma":
        return multiply_add(dtype, *xs)
    if dtype.is_float:
        return rounded(FLOAT[op](*xs), dtype)
    if dtype is DType.BOOL:
        return BOOL[op](*xs)
    return wrap(_shift(op, *xs, dtype) if op in ("shl", "shr") else INTEGER[op](*xs), dtype)


def multiply_add(dtype: DType, a: Number, b: Number, c: Number) -> Number:
    """a * b + c rounded once (to f32 first for narrower types)."""
    if not dtype.is_float:
        return wrap(a * b + c, dtype)
    if not all(map(math.isfinite, (a, b, c))):
        return rounded(a * b + c, dtype)
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return rounded(a * b + c, dtype)
    with mpmath.workprec(53 if dtype is DType.F64 else 24):
        return rounded(float(mpmath.mpf(exact.numerator) / exact.denominator), dtype)


def convert(x: Number, source: DType, to: DType) -> Number:
    """`cast` of one number."""
    if to is DType.BOOL:
        return x != 0
    if to.is_float:
        return rounded(float(x), to) if source.is_float else _integer_to_float(int(x), to)
    if not source.is_float:
        return wrap(int(x), to)
    low, high = limits(to)
    if math.isnan(x):
        return 0
    return int(max(low, min(high, x))) if math.isfinite(x) else high if x > 0 else low


def _integer_to_float(x: int, to: DType) -> float:
    if to is DType.F64:
        return float(x)
    with mpmath.workprec(24):
        return rounded(float(mpmath.mpf(x) * 1), to)


def bf16(x: float) -> float:
    return float(ml_dtypes.bfloat16(x))
