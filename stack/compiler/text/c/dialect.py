"""What differs between the C languages of devices, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hal.core.dtypes import DType
from hal.tile.ops import TRANSCENDENTAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One C language. What has a default is so in C without extensions for a device.

    `header` starts every text, `double_header` one that uses f64. `kernel` stands before an entry
    point, `scratch_kernel` before one with scratch memory, whose source has `scratch_options`.
    `registers` are the types in which values are computed (narrow floats in that of f32, bool as 0
    or 1), `words` unsigned integers by bits. `in_global` and `in_scratch` qualify pointers,
    `function` a function beside the kernel, `aligned` a scratch array. `program` and `grid` are
    formats of an axis, `as_type` of a type and a value whose bits it reads, `atomic` by bits of the
    names of add, min, max, xchg and cmpxchg, `vector` of a type and a width. `vectors` is a
    template that defines HAL_LOAD_T(space, pointer) and HAL_STORE_T(space, pointer, value) for the
    vector type T of `width` elements of a `kind` of `nbytes`, which may lie anywhere in memory.
    `streamed` is a template that defines HAL_STREAM_T(pointer, value), which puts a vector at an
    aligned place of global memory past the caches, `streamed_end` defines HAL_STREAMED(), behind
    which others see what was put so.
    `splat`, of a vector type and a scalar, is the operand that has the scalar in every element.
    `fused` begins a block in which a * b + c may be rounded once, `fma` defines the functions
    HAL_FMA_F32 and HAL_FMA_F64, which do so always. `exact` is a template that defines HAL_F of a
    `kind` for a function F, which the language calls `name`, of one operand and an exact result.
    The functions of `written_out` are expanded to simpler operations, of which the device's
    compiler can make vector code. `work` gives statements that tell a clock of work, by its kind
    (see `stack.compiler.text.c.work`).
    """

    format: str
    header: str
    double_header: str = ""
    kernel: str = "void"
    scratch_kernel: str = "void"
    scratch_options: tuple[tuple[str, str], ...] = ()
    registers: Mapping[DType, str]
    words: Mapping[int, str]
    in_global: str = ""
    in_scratch: str = ""
    function: str = "static inline"
    aligned: str = "__attribute__((aligned(64)))"
    program: str
    grid: str
    as_type: str = "as_{}({})"
    atomic: Mapping[int, str]
    fused: str = ""
    fma: Mapping[DType, str]
    exact: str
    vector: str = "{}{}"
    vectors: str
    streamed: str = ""
    streamed_end: str = ""
    splat: str
    written_out: frozenset[str]
    work: Mapping[str, str]


REGISTERS: Mapping[DType, str] = MappingProxyType(
    {
        DType.F64: "double",
        DType.F32: "float",
        DType.F16: "float",
        DType.BF16: "float",
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

WRITTEN_OUT = frozenset(TRANSCENDENTAL) - {"sin", "cos"} | {"pow"}
"""The expansions of sin and cos do not hold everywhere."""
