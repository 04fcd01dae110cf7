"""Conversions of single values, and their way from and to memory."""

from __future__ import annotations

from hal.core.dtypes import DType
from hal.tile.numeric import NARROW
from stack.compiler.text.c.types import register, wide
from stack.compiler.text.c.writer import Writer


def convert(out: Writer, value: str, source: DType, target: DType) -> str:
    """`cast` of a register value."""
    if source is target:
        return value
    if target is DType.BOOL:
        return f"({value} != 0)"
    if source.is_float and target.is_int:
        return out.functions.saturated(source, target, value)
    plain = f"({register(out.dialect, target)}){value}"
    if target not in NARROW:
        return plain
    return out.functions.rounded(target, plain)


def widen(out: Writer, value: str, source: DType, target: DType) -> str:
    """A value in the type of a sum: what is exact needs no rounding."""
    if wide(source) is wide(target):
        return value
    return f"({register(out.dialect, wide(target))}){value}"


def from_memory(out: Writer, element: str, dtype: DType) -> str:
    """The register value of an element of memory."""
    if dtype in NARROW:
        return out.functions.value(dtype, element)
    return f"({element} != 0)" if dtype is DType.BOOL else element


def to_memory(out: Writer, value: str, dtype: DType) -> str:
    """What memory holds for a register value."""
    return out.functions.bits(dtype, value) if dtype in NARROW else value


def to_bits(out: Writer, value: str, dtype: DType) -> str:
    """The bits of a register value as an unsigned integer."""
    word = out.dialect.words[dtype.bits]
    if dtype in NARROW:
        return out.functions.bits(dtype, value)
    if dtype.is_float:
        return out.dialect.as_type.format(word, value)
    return f"({word}){value}"


def from_bits(out: Writer, raw: str, dtype: DType) -> str:
    """The register value of bits."""
    if dtype in NARROW:
        return out.functions.value(dtype, raw)
    kind = register(out.dialect, dtype)
    return out.dialect.as_type.format(kind, raw) if dtype.is_float else f"({kind}){raw}"
