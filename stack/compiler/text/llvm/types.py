"""How element types and constants are spelled in LLVM IR, in registers and in memory.

A narrow float is its bits: f16 those of a half, all others integers. Bool lives as i1, in memory as
a byte 0 or 1.
"""

from __future__ import annotations

import struct
from functools import cache

from hal.core.dtypes import DType
from hal.tile.numeric import constant as rounded_constant
from hal.tile.numeric import quiet

_FLOATS = {DType.F64: "double", DType.F32: "float", DType.F16: "half"}
_SUFFIX = {"double": "f64", "float": "f32", "half": "f16", "ptr": "p0"}


@cache
def register(dtype: DType) -> str:
    """The LLVM scalar type of a value in a register."""
    return "i1" if dtype is DType.BOOL else _FLOATS.get(dtype) or f"i{dtype.bits}"


@cache
def memory(dtype: DType) -> str:
    """The LLVM scalar type of an element in memory."""
    return "i8" if dtype is DType.BOOL else register(dtype)


@cache
def vector(scalar: str, width: int) -> str:
    """`width` elements of an LLVM scalar type; one element is the scalar itself."""
    return scalar if width == 1 else f"<{width} x {scalar}>"


@cache
def suffix(scalar: str, width: int) -> str:
    """A type as intrinsic names spell it: v8f32, i64."""
    base = _SUFFIX.get(scalar, scalar)
    return base if width == 1 else f"v{width}{base}"


def constant(dtype: DType, value: float) -> str:
    """A constant of an element type as it lives in a register."""
    if dtype is DType.BOOL:
        return "true" if value else "false"
    if dtype.is_float:
        with quiet():
            rounded = rounded_constant(value, dtype)
        if dtype.is_narrow:
            bits = int.from_bytes(rounded.tobytes(), "little")
            return f"0xH{bits:04X}" if dtype is DType.F16 else str(bits)
        return f"0x{struct.unpack('<Q', struct.pack('<d', float(rounded)))[0]:016X}"
    bits = int(value) & ((1 << dtype.bits) - 1)
    return str(bits - (1 << dtype.bits) if bits >> (dtype.bits - 1) else bits)


def splat_constant(scalar: str, text: str, width: int) -> str:
    """A constant repeated over a vector."""
    if width == 1:
        return text
    return "zeroinitializer" if text in _ZEROS else f"splat ({scalar} {text})"


_ZEROS = frozenset({"0", "0x0000000000000000", "0xH0000", "false"})


def is_constant(text: str) -> bool:
    """Whether an operand is a constant (every computed value has a name)."""
    return not text.startswith("%")
