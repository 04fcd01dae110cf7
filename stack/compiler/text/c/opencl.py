"""OpenCL C for processors; as the base of `stack.compiler.lower.simt` for devices with lanes."""

from __future__ import annotations

from types import MappingProxyType

from hal.core.dtypes import DType
from hal.core.values import OPENCL_C
from stack.compiler.text.c.dialect import HAS, REGISTERS, WORDS, Dialect

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
    registers=MappingProxyType({**REGISTERS, DType.I8: "char"}),
    words=WORDS,
    in_global="__global",
    in_scratch="__local",
    array="__local",
    program="program{}",
    grid="grid{}",
    atomic=MappingProxyType({32: "atomic_{}", 64: "atom_{}"}),
    fma=MappingProxyType({DType.F32: _fma("float", "f"), DType.F64: _fma("double", "")}),
    exact=_EXACT,
    fused="#pragma OPENCL FP_CONTRACT ON",
    in_order="#pragma clang loop vectorize(disable)",  # some add every eighth otherwise
    vectors=_VECTORS,
    streamed=_STREAMED,
    streamed_end=_STREAMED_END,
    splat="({})({})",
    has=HAS,
    work=MappingProxyType({}),
)
"""OpenCL C 1.2. An instance is one work-item, which calls a function with its place, the grid and
the scratch memory; with scratch memory, which is local memory, it is a work-group of one."""
