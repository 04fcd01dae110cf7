"""The language of program format `CUDA_C`, as its compiler takes it at run time (no headers)."""

from __future__ import annotations

from types import MappingProxyType

from hal.core.dtypes import DType
from hal.core.values import CUDA_C
from hal.tile.ops import TRANSCENDENTAL
from stack.compiler.text.c.dialect import REGISTERS, WORDS, Dialect

HEADER = """\
typedef signed char schar;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
#define HAL_PROGRAM_0 blockIdx.x
#define HAL_PROGRAM_1 blockIdx.y
#define HAL_PROGRAM_2 blockIdx.z
#define HAL_GRID_0 gridDim.x
#define HAL_GRID_1 gridDim.y
#define HAL_GRID_2 gridDim.z
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define as_float(x) __uint_as_float(x)
#define as_uint(x) __float_as_uint(x)
#define as_double(x) __longlong_as_double((long long)(x))
#define as_ulong(x) ((ulong)__double_as_longlong(x))
#define HAL_WORD(from, to) \\
    static __device__ inline to *hal_word(volatile from *p) { return (to *)p; }
HAL_WORD(int, int)
HAL_WORD(uint, uint)
HAL_WORD(long, long long)
HAL_WORD(ulong, unsigned long long)
#define HAL_ATOMIC_add(p, x) hal_atomic_add(p, x)
#define HAL_ATOMIC_min(p, x) atomicMin(hal_word(p), x)
#define HAL_ATOMIC_max(p, x) atomicMax(hal_word(p), x)
#define HAL_ATOMIC_xchg(p, x) atomicExch(hal_word(p), x)
#define HAL_ATOMIC_cmpxchg(p, old, x) atomicCAS(hal_word(p), old, x)
static __device__ inline void hal_atomic_add(volatile int *p, int x) { atomicAdd((int *)p, x); }
static __device__ inline void hal_atomic_add(volatile uint *p, uint x) { atomicAdd((uint *)p, x); }
static __device__ inline void hal_atomic_add(volatile long *p, long x) {
    atomicAdd((unsigned long long *)p, (unsigned long long)x);
}
static __device__ inline void hal_atomic_add(volatile ulong *p, ulong x) {
    atomicAdd((unsigned long long *)p, (unsigned long long)x);
}"""
"""The 64-bit type of atomic updates is `long long`; additions of either sign are alike."""

_CAST = """\
static __device__ inline {to} {name}({of} x) {{
    {to} y;
    asm("cvt{how};" : "={y}"(y) : "{x}"(x));
    return y;
}}
"""
"""By the instruction that rounds to nearest even."""


def _cast(name: str, how: str, of: str, to: str) -> tuple[str, str]:
    words = {"ushort": "h", "float": "f"}
    return name, _CAST.format(name=name, how=how, of=of, to=to, x=words[of], y=words[to])


_CASTS = {
    (DType.F32, DType.BF16): _cast("hal_cvt_bf16", ".rn.bf16.f32 %0, %1", "float", "ushort"),
    (DType.F32, DType.F16): _cast("hal_cvt_f16", ".rn.f16.f32 %0, %1", "float", "ushort"),
    (DType.F16, DType.F32): _cast("hal_cvt_f32", ".f32.f16 %0, %1", "ushort", "float"),
}

CUDA_C_TEXT = Dialect(
    format=CUDA_C,
    header=HEADER,
    kernel='extern "C" __global__ void',
    registers=REGISTERS,
    words=WORDS,
    array="__shared__",
    function="static __device__ inline",
    program="(long)HAL_PROGRAM_{}",
    grid="(long)HAL_GRID_{}",
    casts=MappingProxyType(_CASTS),
    atomic=MappingProxyType({32: "HAL_ATOMIC_{}", 64: "HAL_ATOMIC_{}"}),
    fma=MappingProxyType(
        {
            DType.F32: "#define HAL_FMA_F32(a, b, c) fmaf(a, b, c)\n",
            DType.F64: "#define HAL_FMA_F64(a, b, c) fma((double)(a), (double)(b), (double)(c))\n",
        }
    ),
    exact="#define HAL_${name}_$kind(x) $builtin(x)\n",
    has=frozenset(TRANSCENDENTAL) - {"rsqrt"},
    work=MappingProxyType({}),
)
"""Programs are compiled with contraction off: what may be rounded once says so by `fmaf`."""
