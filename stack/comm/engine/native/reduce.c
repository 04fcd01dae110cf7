/* The arithmetic of collectives: blocks, reduced in pairs of ranks, for the widest vectors that the processor has. */
#include "engine.h"

#pragma GCC optimize("O3")

#if defined(__x86_64__) && defined(__GLIBC__)
#define WIDEST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDEST
#endif

static const int nbytes_of[] = {8, 4, 2, 2, 8, 4, 2, 1, 8, 4, 2, 1, 1};

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

#define CASE(TAG, NAME, T) case TAG: fold_##NAME((T *)acc, (const T *)a, (const T *)b, n, reduce); break;

/* acc = a (op) b in the type of accumulation; `acc` may be `a` or `b`. */
void he_fold(int dtype, int reduce, void *acc, const void *a, const void *b, int64_t n) {
    switch (dtype) {
        CASE(HE_F64, f64, double) CASE(HE_F32, f32, float) CASE(HE_F16, f32, float) CASE(HE_BF16, f32, float)
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
        CASE(HE_I64, i64, int64_t) CASE(HE_I32, i32, int32_t) CASE(HE_I16, i16, int16_t) CASE(HE_I8, i8, int8_t)
        CASE(HE_U64, u64, uint64_t) CASE(HE_U32, u32, uint32_t) CASE(HE_U16, u16, uint16_t) CASE(HE_U8, u8, uint8_t)
    }
}

int he_is_short(int dtype) { return dtype == HE_F16 || dtype == HE_BF16; }

/* A block in the type of accumulation, in `room` unless it is that already. */
const void *he_widen(int dtype, const unsigned char *src, float *room, int64_t n) {
    if (dtype == HE_F16) he_f16_to_f32(room, (const uint16_t *)src, n);
    else if (dtype == HE_BF16) he_bf16_to_f32(room, (const uint16_t *)src, n);
    else return src;
    return room;
}

void he_narrow(int dtype, unsigned char *out, const float *acc, int64_t n) {
    if (dtype == HE_F16) he_f32_to_f16((uint16_t *)out, acc, n);
    else he_f32_to_bf16((uint16_t *)out, acc, n);
}

#define MOST_LEVELS 16 /* more than 2 ** 16 ranks are not on one host */

typedef struct {
    const void *waits[MOST_LEVELS]; /* of level l: the sum of 2 ** l ranks, whose other half is still to come */
    double (*rooms)[HE_BLOCK];      /* where those that are no source are; the first two are for what is widened */
} he_pairs;

/* What rank `r` shows, in the type of accumulation. */
static const void *shown(int dtype, const he_pairs *p, int r, const unsigned char *src, int64_t n) {
    return he_widen(dtype, src, (float *)p->rooms[r & 1], n);
}

/* Adds rank `r` to the sums that it completes, and lets the result wait: the last fold writes to its own room. */
static void let_wait(int dtype, int reduce, he_pairs *p, int r, const void *sum, int64_t n) {
    int level = 0;
    for (; r >> level & 1; level++) {
        double *acc = p->rooms[r >> (level + 1) & 1 ? 1 : 2 + level];
        he_fold(dtype, reduce, acc, p->waits[level], sum, n);
        sum = acc;
    }
    p->waits[level] = sum;
}

/* Neighbours first, then pairs of pairs: 2, 4, 8, ... ranks that have equal parts of a batch make the sum that one
 * process makes of all of it (stack/compiler/pairs.py). */
static void reduce_pairs(int dtype, int reduce, int size, const unsigned char *const *srcs, int64_t n, void *out) {
    int levels = 32 - __builtin_clz(size), last = size - 1;
    _Alignas(64) double rooms[levels + 2][HE_BLOCK];
    he_pairs p = {{0}, rooms};
    for (int r = 0; r < last; r++) let_wait(dtype, reduce, &p, r, shown(dtype, &p, r, srcs[r], n), n);
    const void *sum = shown(dtype, &p, last, srcs[last], n);
    for (int level = 0; last >> level; level++) {
        if (!(last >> level & 1)) continue;
        he_fold(dtype, reduce, out, p.waits[level], sum, n);
        sum = out;
    }
    if (reduce == HE_AVG) he_divide(dtype, out, n, size);
}

/* Reduces n <= HE_BLOCK elements of each rank's `srcs` into `out`, which may be one of them. */
void he_reduce_block(int dtype, int reduce, int size, const unsigned char *const *srcs, int64_t n, unsigned char *out) {
    _Alignas(64) float acc[HE_BLOCK];
    if (size == 1) memmove(out, srcs[0], n * nbytes_of[dtype]);
    else if (!he_is_short(dtype)) reduce_pairs(dtype, reduce, size, srcs, n, out);
    else {
        reduce_pairs(dtype, reduce, size, srcs, n, acc);
        he_narrow(dtype, out, acc, n);
    }
}
