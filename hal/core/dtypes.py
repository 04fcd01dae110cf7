"""Element types that cross the contract."""

from __future__ import annotations

from enum import Enum


class DType(Enum):
    """An element type: its short name, which is also its spelling in every IR text.

    `bits` is the width in memory; bool takes one byte. `kind` is "f" float, "i" signed,
    "u" unsigned, "b" bool.
    """

    F64 = "f64"
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    I64 = "i64"
    I32 = "i32"
    I16 = "i16"
    I8 = "i8"
    U64 = "u64"
    U32 = "u32"
    U16 = "u16"
    U8 = "u8"
    BOOL = "bool"

    def __init__(self, short: str) -> None:
        self.short = short
        digits = "".join(c for c in short if c.isdigit())
        self.bits = int(digits) if digits else 8
        self.nbytes = self.bits // 8
        self.kind = {"f": "f", "b": "f", "i": "i", "u": "u"}[short[0]] if digits else "b"
        self.is_float = self.kind == "f"
        self.is_int = self.kind in "iu"

    def __repr__(self) -> str:
        return self.short

    def __lt__(self, other: DType) -> bool:
        return self.short < other.short
