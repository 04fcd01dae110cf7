"""C types of tile elements in registers and in memory, and constants."""

from __future__ import annotations

import math

from hal.core.dtypes import DType
from hal.tile.numeric import bounds, constant, quiet
from stack.compiler.text.c.dialect import Dialect


def register(dialect: Dialect, dtype: DType) -> str:
    """The C type of a value, in a variable and in memory; a narrow float is its bits."""
    return dialect.words[dtype.bits] if dtype.is_narrow else dialect.registers[dtype]


def wide_word(dialect: Dialect, dtype: DType) -> str:
    """The unsigned type in which integers of a width are computed."""
    return dialect.words[max(dtype.bits, 32)]


def unsigned(dialect: Dialect, dtype: DType) -> str:
    """The unsigned type of an integer's width."""
    return dialect.words[dtype.bits]


def literal(dtype: DType, value: float) -> str:
    """A constant in a register."""
    if dtype.is_float:
        with quiet():
            rounded = constant(value, dtype)
        if dtype.is_narrow:
            return str(int.from_bytes(rounded.tobytes(), "little"))
        value = float(rounded)
        double = dtype is DType.F64
        if not math.isfinite(value):
            text = "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"
            return f"((double){text})" if double else f"({text})"
        text = value.hex() + ("" if double else "f")
        return f"({text})" if text.startswith("-") else text
    if dtype is DType.BOOL:
        return "1" if value else "0"
    value = int(value)
    suffix = _SUFFIX.get(dtype, "")
    if value < 0 and value == bounds(dtype)[0]:
        return f"({value + 1}{suffix} - 1)"
    return f"({value}{suffix})" if value < 0 else f"{value}{suffix}"


_SUFFIX = {DType.I64: "L", DType.U64: "UL", DType.U32: "U"}
