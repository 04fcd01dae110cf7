"""The way of single values from and to memory, and to and from their bits."""

from __future__ import annotations

from hal.core.dtypes import DType
from stack.compiler.text.c.types import register
from stack.compiler.text.c.writer import CWriter


def from_memory(element: str, dtype: DType) -> str:
    """The register value of an element of memory."""
    return f"({element} != 0)" if dtype is DType.BOOL else element


def to_bits(out: CWriter, value: str, dtype: DType) -> str:
    """The bits of a register value as an unsigned integer."""
    word = out.dialect.words[dtype.bits]
    if dtype.is_float and not dtype.is_narrow:
        return out.dialect.as_type.format(word, value)
    return value if dtype.is_narrow else f"({word}){value}"


def from_bits(out: CWriter, raw: str, dtype: DType) -> str:
    """The register value of bits."""
    kind = register(out.dialect, dtype)
    if dtype.is_float and not dtype.is_narrow:
        return out.dialect.as_type.format(kind, raw)
    return f"({kind}){raw}"
