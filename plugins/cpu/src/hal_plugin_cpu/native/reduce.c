/* The arithmetic of collectives: blocks, reduced in pairs of ranks. */
#include "call.h"

#pragma GCC optimize("O3")

static const int nbytes_of[] = {8, 4, 2, 2, 8, 4, 2, 1, 8, 4, 2, 1, 1, 1, 1};

int hc_nbytes_of(int dtype) { return nbytes_of[dtype]; }

/* NaN wins in MIN and MAX. Integers wrap, so their sums and products are taken unsigned (U). */
#define FOLD(NAME, T, U)                                                                                   \
    static void fold_##NAME(T *restrict acc, const T *restrict src, int64_t n, int reduce) {               \
        if (reduce == PROD) for (int64_t i = 0; i < n; i++) acc[i] = (T)((U)acc[i] * (U)src[i]);           \
        else if (reduce == MIN)                                                                            \
            for (int64_t i = 0; i < n; i++) acc[i] = src[i] < acc[i] || src[i] != src[i] ? src[i] : acc[i]; \
        else if (reduce == MAX)                                                                            \
            for (int64_t i = 0; i < n; i++) acc[i] = src[i] > acc[i] || src[i] != src[i] ? src[i] : acc[i]; \
        else for (int64_t i = 0; i < n; i++) acc[i] = (T)((U)acc[i] + (U)src[i]);                          \
    }                                                                                                      \
    static void divide_##NAME(T *acc, int64_t n, int size) {                                               \
        for (int64_t i = 0; i < n; i++) acc[i] = (T)(acc[i] / size);                                    \
    }

FOLD(f64, double, double)
FOLD(f32, float, float)
FOLD(i64, int64_t, uint64_t)
FOLD(i32, int32_t, uint32_t)
FOLD(i16, int16_t, uint32_t)
FOLD(i8, int8_t, uint32_t)
FOLD(u64, uint64_t, uint64_t)
FOLD(u32, uint32_t, uint32_t)
FOLD(u16, uint16_t, uint32_t)
FOLD(u8, uint8_t, uint32_t)

/* bool: SUM and MAX are "or", PROD and MIN are "and"; bytes are 0 or 1. */
static void fold_bool(uint8_t *acc, const uint8_t *src, int64_t n, int reduce) {
    fold_u8(acc, src, n, reduce == SUM || reduce == MAX ? MAX : MIN);
}

#define CASE(TAG, NAME, T)                                                \
    case TAG:                                                             \
        fold_##NAME((T *)acc, (const T *)src, n, c->reduce);              \
        break;

static void fold(const hc_shape *c, void *acc, const void *src, int64_t n) {
    switch (c->dtype) {
        CASE(F64, f64, double) CASE(F32, f32, float) CASE(F16, f32, float) CASE(BF16, f32, float)
        CASE(F8E4M3FN, f32, float) CASE(F8E5M2, f32, float)
        CASE(I64, i64, int64_t) CASE(I32, i32, int32_t) CASE(I16, i16, int16_t) CASE(I8, i8, int8_t)
        CASE(U64, u64, uint64_t) CASE(U32, u32, uint32_t) CASE(U16, u16, uint16_t) CASE(U8, u8, uint8_t)
        CASE(BOOL, bool, uint8_t)
    }
}

#undef CASE
#define CASE(TAG, NAME, T) case TAG: divide_##NAME((T *)acc, n, c->size); break;

/* The mean of integers is cut off towards zero. */
static void divide(const hc_shape *c, void *acc, int64_t n) {
    switch (c->dtype) {
        CASE(F64, f64, double) CASE(F32, f32, float) CASE(F16, f32, float) CASE(BF16, f32, float)
        CASE(F8E4M3FN, f32, float) CASE(F8E5M2, f32, float)
        CASE(I64, i64, int64_t) CASE(I32, i32, int32_t) CASE(I16, i16, int16_t) CASE(I8, i8, int8_t)
        CASE(U64, u64, uint64_t) CASE(U32, u32, uint32_t) CASE(U16, u16, uint16_t) CASE(U8, u8, uint8_t)
    }
}

/* A block of `src` in the type of accumulation, in `room` unless it is that already. */
static const void *widen(const hc_shape *c, const unsigned char *src, float *room, int64_t n) {
    if (c->dtype == F16) hc_f16_to_f32(room, (const uint16_t *)src, n);
    else if (c->dtype == BF16) hc_bf16_to_f32(room, (const uint16_t *)src, n);
    else if (c->dtype >= F8E4M3FN) hc_f8_to_f32(c->dtype, room, src, n);
    else return src;
    return room;
}

static void narrow(const hc_shape *c, unsigned char *out, const float *acc, int64_t n) {
    if (c->dtype == F16) hc_f32_to_f16((uint16_t *)out, acc, n);
    else if (c->dtype == BF16) hc_f32_to_bf16((uint16_t *)out, acc, n);
    else if (c->dtype >= F8E4M3FN) hc_f32_to_f8(c->dtype, out, acc, n);
    else memcpy(out, acc, n * nbytes_of[c->dtype]);
}

/* `count` of the ranks' sources into `acc`, in the type of accumulation: neighbours first, then pairs of pairs. */
static void combine(const hc_shape *c, const unsigned char *const *srcs, int count, int64_t n, double *acc) {
    int is_short = c->dtype == F16 || c->dtype == BF16 || c->dtype >= F8E4M3FN, half = 1;
    if (count == 1) {
        const void *one = widen(c, srcs[0], (float *)acc, n);
        if (one != (void *)acc) memcpy(acc, one, n * (is_short ? 4 : nbytes_of[c->dtype]));
        return;
    }
    while (2 * half < count) half *= 2;
    _Alignas(64) double room[HC_BLOCK];
    combine(c, srcs, half, n, acc);
    if (count - half > 1) combine(c, srcs + half, count - half, n, room);
    fold(c, acc, count - half > 1 ? room : widen(c, srcs[half], (float *)room, n), n);
}

/* Reduces n <= HC_BLOCK elements of each rank's `srcs` into `out`, which may be one of them. */
void hc_reduce_block(const hc_shape *c, const unsigned char *const *srcs, int64_t n, unsigned char *out) {
    _Alignas(64) double acc[HC_BLOCK];
    combine(c, srcs, c->size, n, acc);
    if (c->reduce == AVG) divide(c, acc, n);
    narrow(c, out, (const float *)acc, n);
}
