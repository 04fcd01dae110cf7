"""Element types that cross the contract: a row of facts each."""

from __future__ import annotations

from enum import Enum
from functools import cached_property


class DType(Enum):
    """An element type.

    Its value is its short name, which is also its spelling in every IR text. Codes that are
    positions in this table are part of wires and caches: a new row comes last.
    """

    F64 = "f64", "float64", 64, 11, 52
    F32 = "f32", "float32", 32, 8, 23
    F16 = "f16", "float16", 16, 5, 10, "f32"
    BF16 = "bf16", "bfloat16", 16, 8, 7, "f32"
    I64 = "i64", "int64", 64
    I32 = "i32", "int32", 32
    I16 = "i16", "int16", 16
    I8 = "i8", "int8", 8
    U64 = "u64", "uint64", 64
    U32 = "u32", "uint32", 32
    U16 = "u16", "uint16", 16
    U8 = "u8", "uint8", 8
    BOOL = "bool", "bool", 8
    F8E4M3FN = "f8e4m3fn", "float8_e4m3fn", 8, 4, 3, "f32", True
    F8E5M2 = "f8e5m2", "float8_e5m2", 8, 5, 2, "f32"

    _value_: str
    _computed_in: str
    short: str
    numpy: str
    """The name of the element type in numpy and ml_dtypes, PyTorch and the framework."""
    kind: str
    """"f" float, "i" signed, "u" unsigned, "b" bool."""
    bits: int
    """The width in memory; bool takes one byte."""
    nbytes: int
    """From one element to the next in memory. A type of less than a byte has none: sizes of arrays
    are asked of `nbytes_of`."""
    exponent: int
    """Bits of a float's exponent; 0 for others."""
    mantissa: int
    """Bits of a float's significand that are stored; 0 for others."""
    bias: int
    """What is subtracted from a float's stored exponent."""
    finite_only: bool
    """A float without infinities, whose only NaN is all ones but for the sign: what would round
    beyond its largest number is NaN."""
    is_float: bool
    is_int: bool
    is_narrow: bool
    """Whether it is a float that is computed in a wider one."""

    def __new__(
        cls,
        short: str,
        numpy: str = "",
        bits: int = 0,
        exponent: int = 0,
        mantissa: int = 0,
        computed_in: str = "",
        finite_only: bool = False,
    ) -> DType:
        self = object.__new__(cls)
        self._value_ = self.short = short
        self.numpy, self.bits = numpy, bits
        self.exponent, self.mantissa, self.finite_only = exponent, mantissa, finite_only
        self.bias = (1 << exponent - 1) - 1 if exponent else 0
        self.kind = "f" if exponent else "b" if short == "bool" else short[0]
        self.is_float, self.is_int = self.kind == "f", self.kind in "iu"
        self.is_narrow = bool(computed_in)
        self._computed_in = computed_in or short
        if bits % 8 == 0:
            self.nbytes = bits // 8
        return self

    @cached_property
    def computed_in(self) -> DType:
        """The type in which arithmetic on it is done, after which each result is rounded once."""
        return DType(self._computed_in)

    def nbytes_of(self, count: int) -> int:
        """The bytes that so many elements take, one after the other."""
        return -(-count * self.bits // 8)

    @property
    def largest(self) -> float:
        """The largest finite number of a float type."""
        steps = 2 if self.finite_only else 1
        top = (1 << self.exponent) - 1 - self.bias - (not self.finite_only)
        return (2.0 - steps * 2.0**-self.mantissa) * 2.0**top

    # By identity, as members are compared: an enum's own hash takes a call of Python, and the
    # compiler looks types up some hundred thousand times for a graph.
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return self.short

    def __lt__(self, other: DType) -> bool:
        return self.short < other.short
