"""GNU C for slave cores of athread: each fills its scratchpad by DMA."""

from __future__ import annotations

from types import MappingProxyType

from hal.core.dtypes import DType
from hal.core.values import ATHREAD_C
from stack.compiler.text.c.dialect import HAS, REGISTERS, WORDS, Dialect

_HEADER = """\
#include <slave.h>
#include <math.h>
#ifndef athread_work_f64
#define athread_work_f64(flops) ((void)0)
#define athread_work_f32(flops) ((void)0)
#define athread_work_f16(flops) ((void)0)
#define athread_work_int(operations) ((void)0)
#define athread_work_ldm(nbytes) ((void)0)
#define athread_work_direct(accesses) ((void)0)
#endif
typedef signed char schar;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
#define HAL_BITS(to, from)                                                  \\
    static inline to as_##to##_of_##from(from x) {                          \\
        to y;                                                               \\
        __builtin_memcpy(&y, &x, sizeof y);                                 \\
        return y;                                                           \\
    }
HAL_BITS(float, uint)
HAL_BITS(uint, float)
HAL_BITS(double, ulong)
HAL_BITS(ulong, double)
#define as_float(x) as_float_of_uint(x)
#define as_uint(x) as_uint_of_float(x)
#define as_double(x) as_double_of_ulong(x)
#define as_ulong(x) as_ulong_of_double(x)
#define fmod(x, y) _Generic((x), float: fmodf, default: fmod)(x, y)
#define sin(x) _Generic((x), float: sinf, default: sin)(x)
#define cos(x) _Generic((x), float: cosf, default: cos)(x)"""
"""The last lines name the function of the argument's type, as the other languages do."""

_ATOMICS = """\
#define HAL_ATOMIC_add(p, x) ((void)__sync_fetch_and_add(p, x))
#define HAL_ATOMIC_cmpxchg(p, old, new) __sync_val_compare_and_swap(p, old, new)
#define HAL_ATOMIC_xchg(p, x) HAL_UPDATE(p, (x))
#define HAL_ATOMIC_min(p, x) HAL_UPDATE(p, (x) < hal_old ? (x) : hal_old)
#define HAL_ATOMIC_max(p, x) HAL_UPDATE(p, (x) > hal_old ? (x) : hal_old)
#define HAL_UPDATE(p, next)                                                 \\
    do {                                                                    \\
        for (;;) {                                                          \\
            __typeof__(*(p) + 0) hal_old = *(p);                            \\
            if (__sync_bool_compare_and_swap(p, hal_old, next)) break;      \\
        }                                                                   \\
    } while (0)"""

_EXACT = "#define HAL_${name}_$kind(x) __builtin_$builtin(x)\n"

_VECTORS = """\
typedef $kind $kind$width __attribute__((vector_size($width * $nbytes)));
typedef $kind hal_$kind$width
    __attribute__((vector_size($width * $nbytes), aligned($nbytes), may_alias));
#define HAL_LOAD_$kind$width(space, p) (*(const hal_$kind$width *)(p))
#define HAL_STORE_$kind$width(space, p, x) (*(hal_$kind$width *)(p) = (x))
"""


def _fma(suffix: str) -> str:
    return f"#define HAL_FMA_F{32 if suffix else 64}(a, b, c) __builtin_fma{suffix}(a, b, c)\n"


ATHREAD = Dialect(
    format=ATHREAD_C,
    header=f"{_HEADER}\n{_ATOMICS}",
    registers=REGISTERS,
    words=WORDS,
    program="hal_id{}",
    grid="hal_grid[{}]",
    atomic=MappingProxyType({32: "HAL_ATOMIC_{}", 64: "HAL_ATOMIC_{}"}),
    fma=MappingProxyType({DType.F32: _fma("f"), DType.F64: _fma("")}),
    exact=_EXACT,
    vectors=_VECTORS,
    splat="{1}",
    has=HAS,
    work=MappingProxyType(
        {
            "f64": "athread_work_f64({});",
            "f32": "athread_work_f32({});",
            "int": "athread_work_int({});",
            "near": "athread_work_ldm({});",
            "direct": "athread_work_direct({});",
        }
    ),
)
"""Vectors are GNU C's. Atomic updates are the compiler's `__sync` functions. Variables of a
function lie in the scratchpad, as do scratch arrays."""
