"""How element types and constants are spelled in LLVM IR, in registers and in memory.

A f16 or bf16 value lives in a register as the f32 that it equals, so that casts to f32 and chains
of f32 arithmetic cost nothing; bool lives as i1. In memory bf16 is i16 and bool a byte 0 or 1.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import cache

from hal.core.dtypes import DType

NARROW = frozenset({DType.F16, DType.BF16})
SIGNED = frozenset({DType.I8, DType.I16, DType.I32, DType.I64})

_SPECIAL = {DType.F64: "double", DType.F32: "float", DType.F16: "float", DType.BF16: "float"}
_MEMORY = {DType.F16: "half", DType.BF16: "i16", DType.BOOL: "i8"}
_SUFFIX = {"double": "f64", "float": "f32", "half": "f16", "ptr": "p0"}


@cache
def register(dtype: DType) -> str:
    """The LLVM scalar type of a value in a register."""
    return "i1" if dtype is DType.BOOL else _SPECIAL.get(dtype) or f"i{dtype.bits}"


@cache
def memory(dtype: DType) -> str:
    """The LLVM scalar type of an element in memory."""
    return _MEMORY.get(dtype) or register(dtype)


@cache
def vector(scalar: str, width: int) -> str:
    """`width` elements of an LLVM scalar type; one element is the scalar itself."""
    return scalar if width == 1 else f"<{width} x {scalar}>"


@cache
def suffix(scalar: str, width: int) -> str:
    """A type as intrinsic names spell it: v8f32, i64."""
    base = _SUFFIX.get(scalar, scalar)
    return base if width == 1 else f"v{width}{base}"


def to_f32(value: float) -> float:
    """The nearest f32, infinite beyond its range."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _to_f16(value: float) -> float:
    try:
        return float(struct.unpack("<e", struct.pack("<e", to_f32(value)))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _to_bf16(value: float) -> float:
    single = to_f32(value)
    if not math.isfinite(single):
        return single
    bits = int(struct.unpack("<I", struct.pack("<f", single))[0])
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


_ROUND: dict[DType, Callable[[float], float]] = {
    DType.F32: to_f32,
    DType.F16: _to_f16,
    DType.BF16: _to_bf16,
    DType.F64: float,
}


def constant(dtype: DType, value: float) -> str:
    """A constant of an element type as it lives in a register."""
    if dtype is DType.BOOL:
        return "true" if value else "false"
    if dtype.is_float:
        rounded = struct.unpack("<Q", struct.pack("<d", _ROUND[dtype](float(value))))[0]
        return f"0x{rounded:016X}"
    bits = int(value) & ((1 << dtype.bits) - 1)
    return str(bits - (1 << dtype.bits) if bits >> (dtype.bits - 1) else bits)


def splat_constant(scalar: str, text: str, width: int) -> str:
    """A constant repeated over a vector."""
    if width == 1:
        return text
    return "zeroinitializer" if text in _ZEROS else f"splat ({scalar} {text})"


_ZEROS = frozenset({"0", "0x0000000000000000", "false"})


def is_constant(text: str) -> bool:
    """Whether an operand is a constant (every computed value has a name)."""
    return not text.startswith("%")
