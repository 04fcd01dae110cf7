"""What differs between the C languages of devices, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType

from hal.core.dtypes import DType
from hal.core.facts import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One C language. What has a default is so in C without extensions for a device."""

    format: str
    header: str
    """Starts every text."""
    double_header: str = ""
    """Follows it in one that uses f64."""
    kernel: str = "void"
    """Stands before an entry point."""
    scratch_kernel: str = "void"
    """Stands before one with scratch memory."""
    scratch_options: tuple[tuple[str, str], ...] = ()
    """The options of a source with scratch memory."""
    registers: Mapping[DType, str]
    """The types of values; bool is 0 or 1."""
    words: Mapping[int, str]
    """Unsigned integers by bits, which narrow floats are, too."""
    in_global: str = ""
    in_scratch: str = ""
    """Qualify pointers."""
    array: str = ""
    """Stands before a scratch array."""
    function: str = "static inline"
    """Stands before a function beside the kernel."""
    aligned: str = "__attribute__((aligned(64)))"
    """Follows a scratch array."""
    program: str
    grid: str
    """Formats of an axis."""
    as_type: str = "as_{}({})"
    """Format of a type and a value whose bits it reads."""
    atomic: Mapping[int, str]
    """By bits, formats of the names of add, min, max, xchg and cmpxchg."""
    casts: Mapping[tuple[DType, DType], tuple[str, str]] = field(default_factory=dict)
    """Functions for casts from and to narrow floats, by both types: the name, and its definition.
    Others are computed on the bits."""
    fused: str = ""
    """Begins a block in which a * b + c may be rounded once."""
    in_order: str = ""
    """Before a loop that carries floats from round to round: compilers may not add several rounds
    at once."""
    fma: Mapping[DType, str]
    """Define the functions HAL_FMA_F32 and HAL_FMA_F64, which round it once always."""
    exact: str
    """Template that defines HAL_F of a `kind` for a function F, which the language calls `name`, of
    one operand and an exact result."""
    vector: str = "{}{}"
    """Format of a type and a width."""
    vectors: str = ""
    """Template that defines HAL_LOAD_T(space, pointer) and HAL_STORE_T(space, pointer, value) for
    the vector type T of `width` elements of a `kind` of `nbytes`, which may lie anywhere in memory.
    """
    streamed: str = ""
    """Template that defines HAL_STREAM_T(pointer, value), which puts a vector at an aligned place
    of global memory past the caches."""
    streamed_end: str = ""
    """Defines HAL_STREAMED(), behind which others see what was put so."""
    splat: str = ""
    """Format of a vector type and a scalar: an operand that has the scalar in every element."""
    has: frozenset[str]
    """The functions that are called; others are written out, so that the device's compiler can make
    vector code of them."""
    work: Mapping[str, str]
    """Statements that tell a clock of work, by its kind (see `stack.compiler.text.c.work`)."""


REGISTERS: Mapping[DType, str] = MappingProxyType(
    {
        DType.F64: "double",
        DType.F32: "float",
        DType.I64: "long",
        DType.I32: "int",
        DType.I16: "short",
        DType.I8: "schar",
        DType.U64: "ulong",
        DType.U32: "uint",
        DType.U16: "ushort",
        DType.U8: "uchar",
        DType.BOOL: "uchar",
    }
)
"""By names of one word, which a language has or its header defines."""

WORDS: Mapping[int, str] = MappingProxyType({8: "uchar", 16: "ushort", 32: "uint", 64: "ulong"})

HAS = frozenset({"sin", "cos"})
"""Their definitions do not hold everywhere."""
