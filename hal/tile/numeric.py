"""The meaning of numbers: numpy element types, conversions, and each elementwise operation.

Slow and exact to the words of `hal.tile.kernel`; the interpreter and constant folding use it. Call
inside `quiet()`: overflow and NaN are values here, not warnings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from hal.core.dtypes import DType

Array = NDArray[Any]

NUMPY: Mapping[DType, np.dtype[Any]] = MappingProxyType(
    {d: np.dtype(getattr(ml_dtypes, d.numpy, d.numpy)) for d in DType}
)
"""The numpy element type of each DType."""

DTYPES: Mapping[np.dtype[Any], DType] = MappingProxyType({n: d for d, n in NUMPY.items()})
"""The DType of each numpy element type that has one."""

_WIDE = {n: NUMPY[d.computed_in] for d, n in NUMPY.items()}
"""The numpy element type in which operations on each are computed."""

_F32, _F64 = NUMPY[DType.F32], NUMPY[DType.F64]


def quiet() -> np.errstate:
    """A context in which numpy does not warn of overflow, division by zero and NaN."""
    return np.errstate(all="ignore")


def bounds(dtype: DType) -> tuple[int, int]:
    """The smallest and largest value of an integer type (or bool)."""
    if dtype is DType.BOOL:
        return 0, 1
    info = np.iinfo(NUMPY[dtype])
    return int(info.min), int(info.max)


def constant(value: float, dtype: DType) -> Array:
    """A constant's 0-d array: floats are rounded to the type, integers must fit (OverflowError)."""
    if dtype.is_float:
        return convert(np.asarray(value, _F64), dtype)
    return np.asarray(value, NUMPY[dtype])


def convert(x: Array, dtype: DType) -> Array:
    """`cast`: x's values in another element type."""
    source = DTYPES[x.dtype]
    if source is dtype:
        return x
    if dtype is DType.BOOL:
        return np.asarray(x != 0)
    if dtype.is_float:
        return x.astype(NUMPY[dtype.computed_in]).astype(NUMPY[dtype])
    if not source.is_float:
        return x.astype(NUMPY[dtype])
    # integers hold what lies outside as their ends, and NaN as 0
    x, (low, high) = x.astype(_F64), bounds(dtype)
    t = np.trunc(np.where(np.isnan(x), 0.0, x))
    inside = (t >= low) & (t < float(high + 1))
    exact = np.where(inside, t, 0.0).astype(NUMPY[dtype])
    limit = np.where(t < 0, NUMPY[dtype].type(low), NUMPY[dtype].type(high))
    return np.where(inside, exact, limit)


def bitcast(x: Array, dtype: DType) -> Array:
    """x's bits as another element type of the same width."""
    return np.ascontiguousarray(x).view(NUMPY[dtype]).reshape(x.shape)


_IN_F64: Mapping[str, Callable[..., Array]] = {
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf, otypes=[_F64]),
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "pow": np.power,
}
"""Functions computed in f64 and rounded."""


def _fma_one(a: float, b: float, c: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b + c
    if not math.isfinite(c):
        return c
    from fractions import Fraction  # noqa: PLC0415  (it brings decimal numbers; few programs come here)

    product = Fraction(a) * Fraction(b)
    exact = product + Fraction(c)
    if exact == 0:
        return a * b + c if product == 0 else 0.0
    try:
        return math.copysign(float(abs(exact)), exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _fma(a: Array, b: Array, c: Array) -> Array:
    if a.dtype == _F32:
        # In f64 the product is exact and the sum rounded to odd: only the last rounding counts
        p, c64 = a.astype(_F64) * b.astype(_F64), c.astype(_F64)
        s = np.asarray(p + c64)
        back = s - p
        error = np.asarray((p - (s - back)) + (c64 - back))
        bits = s.view(np.int64)
        inexact = np.isfinite(s) & (error != 0) & (bits & 1 == 0)
        away = np.where((error > 0) == (s > 0), 1, -1)
        odd = np.where(inexact, bits + away, bits).view(_F64)
        return np.asarray(odd).astype(_F32)
    if a.dtype == _F64:
        return np.asarray(np.vectorize(_fma_one, otypes=[_F64])(a, b, c))
    return np.asarray(a * b + c)


def _div(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    minus = (b == -1) if a.dtype.kind == "i" else np.zeros(b.shape, bool)
    safe = np.where((b == 0) | minus, np.ones_like(b), b)
    floor = a // safe
    truncated = floor + ((a - floor * safe != 0) & ((a < 0) != (safe < 0))).astype(a.dtype)
    return np.where(b == 0, np.zeros_like(a), np.where(minus, -a, truncated))


def _rem(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.asarray(np.fmod(a, b))
    return np.where(b == 0, np.zeros_like(a), a - _div(a, b) * b)


def _shift(left: bool) -> Callable[[Array, Array], Array]:
    def shift(a: Array, b: Array) -> Array:
        width = a.dtype.itemsize * 8
        inside = (b >= 0) & (b < width)
        amount = np.where(inside, b, np.zeros_like(b))
        shifted = a << amount if left else a >> amount
        fill = np.zeros_like(a) if left else np.where(a < 0, ~np.zeros_like(a), np.zeros_like(a))
        return np.where(inside, shifted, fill)

    return shift


_PLAIN: Mapping[str, Any] = {
    "neg": np.negative,
    "abs": np.absolute,
    "sqrt": np.sqrt,
    "recip": lambda x: x.dtype.type(1) / x,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "not": np.invert,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _div,
    "rem": _rem,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": _shift(left=True),
    "shr": _shift(left=False),
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "fma": _fma,
}
"""Functions computed in the operands' own type (narrow floats: see `DType.computed_in`)."""


def elementwise(op: str, *operands: Array) -> Array:
    """An elementwise operation (but where, cast, bitcast) on arrays of one shape and type."""
    own = operands[0].dtype
    if op in _IN_F64:
        return convert(np.asarray(_IN_F64[op](*(x.astype(_F64) for x in operands))), DTYPES[own])
    wide = _WIDE[own]
    if wide is not own:
        operands = tuple(x.astype(wide, copy=False) for x in operands)
    result = np.asarray(_PLAIN[op](*operands))
    kept = result.dtype is own or result.dtype == np.bool_
    return result if kept else convert(result, DTYPES[own])


def accumulated(op: str, x: Array) -> Array:
    """The sum ("add"), product ("mul"), "min" or "max" of the first 1, 2, 3, ... slices along the
    first axis, in index order and in x's own type."""
    return np.asarray(_PLAIN[op].accumulate(x, axis=0, dtype=x.dtype))
