/* The arithmetic of collectives: blocks, reduced in pairs of ranks, for the widest vectors that the processor has. */
#include "engine.h"

#pragma GCC optimize("O3")

#if defined(__x86_64__) && defined(__GLIBC__)
#define WIDEST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDEST
#endif

static const int nbytes_of[] = {8, 4, 2, 2, 8, 4, 2, 1, 8, 4, 2, 1, 1, 1, 1};

int he_nbytes_of(int dtype) { return nbytes_of[dtype]; }

#define EACH(EXPRESSION) \
    _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++) acc[i] = (EXPRESSION);

/* acc = a (op) b, where acc may be a or b. NaN wins in MIN and MAX. Integers wrap, so their sums and products are
 * taken unsigned (U). */
#define FOLD(NAME, T, U)                                                                              \
    WIDEST static void fold_##NAME(T *acc, const T *a, const T *b, int64_t n, int reduce) {          \
        if (reduce == HE_PROD) EACH((T)((U)a[i] * (U)b[i]))                                           \
        else if (reduce == HE_MIN) EACH(b[i] < a[i] || b[i] != b[i] ? b[i] : a[i])                    \
        else if (reduce == HE_MAX) EACH(b[i] > a[i] || b[i] != b[i] ? b[i] : a[i])                    \
        else EACH((T)((U)a[i] + (U)b[i]))                                                             \
    }                                                                                                 \
    static void divide_##NAME(T *acc, int64_t n, int size) {                                          \
        for (int64_t i = 0; i < n; i++) acc[i] = (T)(acc[i] / size);                                  \
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

/* SUM and MAX of bools are "or", PROD and MIN are "and"; bytes are 0 or 1. */
static void fold_bool(uint8_t *acc, const uint8_t *a, const uint8_t *b, int64_t n, int reduce) {
    fold_u8(acc, a, b, n, reduce == HE_SUM || reduce == HE_MAX ? HE_MAX : HE_MIN);
}

WIDEST static void fold_bits(uint8_t *acc, const uint8_t *a, const uint8_t *b, int64_t n, int reduce) {
    if (reduce == HE_BAND) EACH(a[i] & b[i])
    else if (reduce == HE_BOR) EACH(a[i] | b[i])
    else EACH(a[i] ^ b[i])
}

#define CASE(TAG, NAME, T) case TAG: fold_##NAME((T *)acc, (const T *)a, (const T *)b, n, reduce); break;

/* acc = a (op) b in the type of accumulation; `acc` may be `a` or `b`. */
void he_fold(int dtype, int reduce, void *acc, const void *a, const void *b, int64_t n) {
    if (reduce >= HE_BAND) {
        fold_bits(acc, a, b, n * nbytes_of[dtype], reduce);
        return;
    }
    switch (dtype) {
        CASE(HE_F64, f64, double) CASE(HE_F32, f32, float) CASE(HE_F16, f32, float) CASE(HE_BF16, f32, float)
        CASE(HE_F8E4M3FN, f32, float) CASE(HE_F8E5M2, f32, float)
        CASE(HE_I64, i64, int64_t) CASE(HE_I32, i32, int32_t) CASE(HE_I16, i16, int16_t) CASE(HE_I8, i8, int8_t)
        CASE(HE_U64, u64, uint64_t) CASE(HE_U32, u32, uint32_t) CASE(HE_U16, u16, uint16_t) CASE(HE_U8, u8, uint8_t)
        CASE(HE_BOOL, bool, uint8_t)
    }
}

#undef CASE
#define CASE(TAG, NAME, T) case TAG: divide_##NAME((T *)acc, n, size); break;

/* The mean of integers is cut off towards zero. */
void he_divide(int dtype, void *acc, int64_t n, int size) {
    switch (dtype) {
        CASE(HE_F64, f64, double) CASE(HE_F32, f32, float) CASE(HE_F16, f32, float) CASE(HE_BF16, f32, float)
        CASE(HE_F8E4M3FN, f32, float) CASE(HE_F8E5M2, f32, float)
        CASE(HE_I64, i64, int64_t) CASE(HE_I32, i32, int32_t) CASE(HE_I16, i16, int16_t) CASE(HE_I8, i8, int8_t)
        CASE(HE_U64, u64, uint64_t) CASE(HE_U32, u32, uint32_t) CASE(HE_U16, u16, uint16_t) CASE(HE_U8, u8, uint8_t)
    }
}

int he_is_short(int dtype) { return dtype == HE_F16 || dtype == HE_BF16 || dtype >= HE_F8E4M3FN; }

/* A block in the type of accumulation, in `room` unless it is that already. */
const void *he_widen(int dtype, const unsigned char *src, float *room, int64_t n) {
    if (dtype == HE_F16) he_f16_to_f32(room, (const uint16_t *)src, n);
    else if (dtype == HE_BF16) he_bf16_to_f32(room, (const uint16_t *)src, n);
    else if (dtype >= HE_F8E4M3FN) he_f8_to_f32(dtype, room, src, n);
    else return src;
    return room;
}

void he_narrow(int dtype, unsigned char *out, const float *acc, int64_t n) {
    if (dtype == HE_F16) he_f32_to_f16((uint16_t *)out, acc, n);
    else if (dtype == HE_BF16) he_f32_to_bf16((uint16_t *)out, acc, n);
    else he_f32_to_f8(dtype, out, acc, n);
}

/* The sources of `count` ranks in the type of accumulation, neighbours first, then pairs of pairs: 2, 4, 8, ... ranks that
 * have equal parts of a batch make the sum that one process makes of all of it (stack/compiler/pairs.py). Returns where it
 * is: `out`, which is written last and so may be a source, or a source. */
static const void *combined(int dtype, int reduce, const unsigned char *const *srcs, int count, int64_t n, void *out) {
    _Alignas(64) double rooms[2][HE_BLOCK];
    int half = 1;
    if (count == 1) return he_widen(dtype, srcs[0], out, n);
    while (2 * half < count) half *= 2;
    const void *left = combined(dtype, reduce, srcs, half, n, rooms[0]);
    const void *right = combined(dtype, reduce, srcs + half, count - half, n, rooms[1]);
    he_fold(dtype, reduce, out, left, right, n);
    return out;
}

/* Reduces n <= HE_BLOCK elements of each rank's `srcs` into `out`, which may be one of them. */
void he_reduce_block(int dtype, int reduce, int size, const unsigned char *const *srcs, int64_t n, unsigned char *out) {
    _Alignas(64) float acc[HE_BLOCK];
    void *sum = he_is_short(dtype) ? (void *)acc : out;
    if (size == 1) {
        memmove(out, srcs[0], n * nbytes_of[dtype]);
        return;
    }
    combined(dtype, reduce, srcs, size, n, sum);
    if (reduce == HE_AVG) he_divide(dtype, sum, n, size);
    if (sum == acc) he_narrow(dtype, out, acc, n);
}
