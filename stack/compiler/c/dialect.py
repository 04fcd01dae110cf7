"""What differs between the C languages of devices, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hal.core.dtypes import DType
from hal.core.values import OPENCL_C
from hal.tile.ops import TRANSCENDENTAL


@dataclass(frozen=True, slots=True)
class Dialect:
    """One C language.

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
    (see `stack.compiler.c.work`).
    """

    format: str
    header: str
    double_header: str
    kernel: str
    scratch_kernel: str
    scratch_options: tuple[tuple[str, str], ...]
    registers: Mapping[DType, str]
    words: Mapping[int, str]
    in_global: str
    in_scratch: str
    function: str
    aligned: str
    program: str
    grid: str
    as_type: str
    atomic: Mapping[int, str]
    fused: str
    fma: Mapping[DType, str]
    exact: str
    vector: str
    vectors: str
    streamed: str
    streamed_end: str
    splat: str
    written_out: frozenset[str]
    work: Mapping[str, str]


_REGISTERS = {
    DType.F64: "double",
    DType.F32: "float",
    DType.F16: "float",
    DType.BF16: "float",
    DType.I64: "long",
    DType.I32: "int",
    DType.I16: "short",
    DType.I8: "char",
    DType.U64: "ulong",
    DType.U32: "uint",
    DType.U16: "ushort",
    DType.U8: "uchar",
    DType.BOOL: "uchar",
}


_INSTRUCTIONS = "defined(__clang__) && (defined(__FMA__) || defined(__ARM_FEATURE_FMA))"
"""OpenCL's functions may be calls, which keep loops from becoming vector code; where the processor
has instructions for them, the compiler's builtins are those."""


def _fma(kind: str, suffix: str) -> str:
    name = f"HAL_FMA_F{32 if suffix else 64}"
    return (
        f"#if {_INSTRUCTIONS}\n"
        f"#define {name}(a, b, c) __builtin_fma{suffix}(a, b, c)\n"
        "#else\n"
        f"#define {name}(a, b, c) fma(({kind})(a), ({kind})(b), ({kind})(c))\n"
        "#endif\n"
    )


_EXACT = (
    f"#if {_INSTRUCTIONS}\n"
    "#define HAL_${name}_$kind(x) __builtin_$builtin(x)\n"
    "#else\n"
    "#define HAL_${name}_$kind(x) $name(($kind)(x))\n"
    "#endif\n"
)

_VECTORS = """\
#if defined(__clang__)
typedef $kind$width hal_$kind$width __attribute__((aligned($nbytes)));
#define HAL_LOAD_$kind$width(space, p) (*(const space hal_$kind$width *)(p))
#define HAL_STORE_$kind$width(space, p, x) (*(space hal_$kind$width *)(p) = (x))
#else
#define HAL_LOAD_$kind$width(space, p) vload$width(0, p)
#define HAL_STORE_$kind$width(space, p, x) vstore$width(x, 0, p)
#endif
"""
"""OpenCL's vload and vstore may be calls, around which no vector stays in a register."""

_STREAMED = """\
#if defined(__clang__)
#define HAL_STREAM_$kind$width(p, x) \\
    __builtin_nontemporal_store(($kind$width)(x), (__global $kind$width *)(p))
#else
#define HAL_STREAM_$kind$width(p, x) HAL_STORE_$kind$width(__global, p, x)
#endif
"""

_STREAMED_END = """\
#if defined(__clang__)
#define HAL_STREAMED() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#else
#define HAL_STREAMED() ((void)0)
#endif
"""
"""The order of such stores and of what tells that a kernel is over is not the usual one."""

OPENCL = Dialect(
    format=OPENCL_C,
    header="#pragma OPENCL FP_CONTRACT OFF",
    double_header="#pragma OPENCL EXTENSION cl_khr_fp64 : enable",
    kernel="__kernel void",
    scratch_kernel="__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void",
    scratch_options=(("lanes", "1"),),
    registers=MappingProxyType(_REGISTERS),
    words=MappingProxyType({8: "uchar", 16: "ushort", 32: "uint", 64: "ulong"}),
    in_global="__global",
    in_scratch="__local",
    function="static inline",
    aligned="__attribute__((aligned(64)))",
    program="(long)get_global_id({})",
    grid="(long)get_global_size({})",
    as_type="as_{}({})",
    atomic=MappingProxyType({32: "atomic_{}", 64: "atom_{}"}),
    fma=MappingProxyType({DType.F32: _fma("float", "f"), DType.F64: _fma("double", "")}),
    exact=_EXACT,
    fused="#pragma OPENCL FP_CONTRACT ON",
    vector="{}{}",
    vectors=_VECTORS,
    streamed=_STREAMED,
    streamed_end=_STREAMED_END,
    splat="({})({})",
    # The expansions of sin and cos do not hold everywhere.
    written_out=frozenset(TRANSCENDENTAL) - {"sin", "cos"} | {"pow"},
    work=MappingProxyType({}),
)
"""OpenCL C 1.2. An instance is one work-item; with scratch memory, which is local memory, it is a
work-group of one."""
