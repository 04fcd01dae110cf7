/* 512-bit vectors of a CPE. Every operation here is counted, so that the emulated clock knows it. */
#ifndef EMU_SIMD_H
#define EMU_SIMD_H

#include "emu_api.h"

typedef double doublev8 __attribute__((vector_size(64)));
typedef float floatv16 __attribute__((vector_size(64)));
typedef float floatv8 __attribute__((vector_size(32)));
typedef int intv16 __attribute__((vector_size(64)));
typedef int intv8 __attribute__((vector_size(32)));
typedef long longv8 __attribute__((vector_size(64)));

#define EMU_LANES(v) (sizeof(v) / sizeof((v)[0]))
#define EMU_FLOPS(v, each)                                                                          \
    (sizeof((v)[0]) == 8 ? (emu_self->mix.fp64 += (each) * EMU_LANES(v))                            \
                         : (emu_self->mix.fp32 += (each) * EMU_LANES(v)))
#define EMU_MOVED(v) (emu_self->mix.ldm += sizeof(v))

/* An access that need not be aligned, and may alias what the program likes. */
#define EMU_AT(v, p) ((struct { __typeof__(v) x; } __attribute__((packed, may_alias)) *)(void *)(p))

#define simd_load(v, p) ((void)((v) = *(__typeof__(v) *)(void *)(p), EMU_MOVED(v)))
#define simd_store(v, p) ((void)(*(__typeof__(v) *)(void *)(p) = (v), EMU_MOVED(v)))
#define simd_loadu(v, p) ((void)((v) = EMU_AT(v, p)->x, EMU_MOVED(v), EMU_MOVED(v)))
#define simd_storeu(v, p) ((void)(EMU_AT(v, p)->x = (v), EMU_MOVED(v), EMU_MOVED(v)))
#define simd_loade(v, p) ((void)((v) = *(p) - (__typeof__(v)){0}, EMU_MOVED((v)[0])))

#define simd_vmas(a, b, c) (EMU_FLOPS(a, 2), (a) * (b) + (c))
#define simd_vms(a, b, c) (EMU_FLOPS(a, 2), (a) * (b) - (c))
#define simd_vmuld(a, b) (EMU_FLOPS(a, 1), (a) * (b))
#define simd_vmuls(a, b) (EMU_FLOPS(a, 1), (a) * (b))
#define simd_vaddd(a, b) (EMU_FLOPS(a, 1), (a) + (b))
#define simd_vadds(a, b) (EMU_FLOPS(a, 1), (a) + (b))
#define simd_vsubd(a, b) (EMU_FLOPS(a, 1), (a) - (b))
#define simd_vsubs(a, b) (EMU_FLOPS(a, 1), (a) - (b))

#define EMU_SUM(v)                                                                                  \
    ({                                                                                              \
        __typeof__(v) emu_v = (v);                                                                  \
        __typeof__(emu_v[0] + emu_v[0]) emu_s = emu_v[0];                                           \
        for (unsigned emu_i = 1; emu_i < EMU_LANES(emu_v); emu_i++) emu_s += emu_v[emu_i];          \
        EMU_FLOPS(emu_v, 1);                                                                        \
        emu_s;                                                                                      \
    })
#define simd_reduc_plusd(v) EMU_SUM(v)
#define simd_reduc_pluss(v) EMU_SUM(v)

#endif
