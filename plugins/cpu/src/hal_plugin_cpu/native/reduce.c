/* The arithmetic of collectives: pieces of a call, reduced block by block in rank order. */
#include "call.h"

#pragma GCC optimize("O3")

#define PIECE 16384 /* elements that one worker takes at a time */
#define BLOCK 1024  /* elements kept in the first-level cache */

static const int nbytes_of[] = {8, 4, 2, 2, 8, 4, 2, 1, 8, 4, 2, 1, 1};

static int64_t span_of(const hc_call *c) { /* elements that the pieces divide */
    if (c->kind == BARRIER) return 0;
    return c->kind == REDUCE_SCATTER || c->kind == ALL_TO_ALL || c->kind == ALL_GATHER ? c->count * c->size : c->count;
}

int64_t hc_call_pieces(const hc_call *c) {
    int64_t n = (span_of(c) + PIECE - 1) / PIECE;
    return n > 0 ? n : 1;
}

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
        for (int64_t i = 0; i < n; i++) acc[i] = (T)(acc[i] / (T)size);                                    \
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

static void fold(const hc_call *c, void *acc, const void *src, int64_t n) {
    switch (c->dtype) {
        CASE(F64, f64, double) CASE(F32, f32, float) CASE(F16, f32, float) CASE(BF16, f32, float)
        CASE(I64, i64, int64_t) CASE(I32, i32, int32_t) CASE(I16, i16, int16_t) CASE(I8, i8, int8_t)
        CASE(U64, u64, uint64_t) CASE(U32, u32, uint32_t) CASE(U16, u16, uint16_t) CASE(U8, u8, uint8_t)
        CASE(BOOL, bool, uint8_t)
    }
}

#undef CASE
#define CASE(TAG, NAME, T) case TAG: divide_##NAME((T *)acc, n, c->size); break;

/* The mean of integers is cut off towards zero. */
static void divide(const hc_call *c, void *acc, int64_t n) {
    switch (c->dtype) {
        CASE(F64, f64, double) CASE(F32, f32, float) CASE(F16, f32, float) CASE(BF16, f32, float)
        CASE(I64, i64, int64_t) CASE(I32, i32, int32_t) CASE(I16, i16, int16_t) CASE(I8, i8, int8_t)
        CASE(U64, u64, uint64_t) CASE(U32, u32, uint32_t) CASE(U16, u16, uint16_t) CASE(U8, u8, uint8_t)
    }
}

/* A block of `src` in the type of accumulation, in `room` unless it is that already. */
static const void *widen(const hc_call *c, const unsigned char *src, float *room, int64_t n) {
    if (c->dtype == F16) hc_f16_to_f32(room, (const uint16_t *)src, n);
    else if (c->dtype == BF16) hc_bf16_to_f32(room, (const uint16_t *)src, n);
    else return src;
    return room;
}

static void narrow(const hc_call *c, unsigned char *out, const float *acc, int64_t n) {
    if (c->dtype == F16) hc_f32_to_f16((uint16_t *)out, acc, n);
    else if (c->dtype == BF16) hc_f32_to_bf16((uint16_t *)out, acc, n);
    else memcpy(out, acc, n * nbytes_of[c->dtype]);
}

/* Reduces elements [at, at + n) of every member's source into `out`; n <= BLOCK. */
static void reduce_block(const hc_call *c, int64_t at, int64_t n, unsigned char *out) {
    _Alignas(64) float room[BLOCK];
    _Alignas(64) double acc[BLOCK];
    int64_t offset = at * nbytes_of[c->dtype];
    int is_short = c->dtype == F16 || c->dtype == BF16;
    const void *first = widen(c, c->members[0].src + offset, room, n);
    memcpy(acc, first, n * (is_short ? 4 : nbytes_of[c->dtype]));
    for (int r = 1; r < c->size; r++) fold(c, acc, widen(c, c->members[r].src + offset, room, n), n);
    if (c->reduce == AVG) divide(c, acc, n);
    narrow(c, out, (const float *)acc, n);
}

static void put(unsigned char *dst, const unsigned char *src, int64_t nbytes) {
    if (dst != src) memcpy(dst, src, nbytes);
}

static void reduce(hc_call *c, int64_t at, int64_t n, unsigned char *out) {
    int64_t size = nbytes_of[c->dtype];
    reduce_block(c, at, n, out);
    if (c->kind == REDUCE) put(c->members[c->root].dst + at * size, out, n * size);
    if (c->kind == ALL_REDUCE)
        for (int r = 0; r < c->size; r++) put(c->members[r].dst + at * size, out, n * size);
    if (c->kind == REDUCE_SCATTER) /* blocks never cross from one member's part to the next */
        put(c->members[at / c->count].dst + at % c->count * size, out, n * size);
}

/* Exchanges the parts that members a <= b have for each other; right also in place. */
static void exchange(hc_call *c, int64_t a, int64_t b, int64_t at, int64_t n, unsigned char *room) {
    int64_t size = nbytes_of[c->dtype], in_a = (b * c->count + at) * size, in_b = (a * c->count + at) * size;
    memcpy(room, c->members[a].src + in_a, n * size);
    put(c->members[a].dst + in_a, c->members[b].src + in_b, n * size);
    memcpy(c->members[b].dst + in_b, room, n * size);
}

static void move(hc_call *c, int64_t at, int64_t n, unsigned char *room) {
    int64_t size = nbytes_of[c->dtype], part = at / c->count, within = at % c->count;
    if (c->kind == BROADCAST)
        for (int r = 0; r < c->size; r++)
            put(c->members[r].dst + at * size, c->members[c->root].src + at * size, n * size);
    if (c->kind == ALL_GATHER)
        for (int r = 0; r < c->size; r++)
            put(c->members[r].dst + at * size, c->members[part].src + within * size, n * size);
    if (c->kind == ALL_TO_ALL)
        for (int64_t r = part; r < c->size; r++) exchange(c, part, r, within, n, room);
}

void hc_call_run(hc_call *c, int64_t begin, int64_t end) {
    _Alignas(64) unsigned char room[BLOCK * 8];
    int64_t last = end * PIECE < span_of(c) ? end * PIECE : span_of(c), n;
    int reduces = c->kind == ALL_REDUCE || c->kind == REDUCE || c->kind == REDUCE_SCATTER;
    for (int64_t at = begin * PIECE; at < last; at += n) {
        int64_t left_of_part = c->count - at % c->count;
        n = last - at < BLOCK ? last - at : BLOCK;
        if (n > left_of_part) n = left_of_part;
        if (reduces) reduce(c, at, n, room);
        else move(c, at, n, room);
    }
}
