/* Writing what is not read again soon past the cache: the old bytes need not be fetched first. */
#include "engine.h"
#ifdef __x86_64__
#include <emmintrin.h>

enum { STEP = 64, PAGE = 4096, TURN = 2 * PAGE, WORDS = STEP / 16 }; /* STEP: a line of the cache */

static inline void read_line(__m128i *to, const unsigned char *src) {
    for (int i = 0; i < WORDS; i++) to[i] = _mm_loadu_si128((const __m128i *)src + i);
}

static inline void write_line(unsigned char *dst, const __m128i *from) {
    for (int i = 0; i < WORDS; i++) _mm_stream_si128((__m128i *)dst + i, from[i]);
}

/* Two pages take turns, a line each, so that two streams are fetched ahead; a processor fetches ahead within a page alone,
 * and so is told of the next two. Both lines are read before one is written: some processors take a read for one of what was
 * just written at the same place of another page, and wait. On one with AVX2 four pages and no such order gave 1.7 GB/s, this
 * 10.8, memcpy 7.6.
 * What is written is seen by all once this is. */
void he_stream(unsigned char *dst, const unsigned char *src, int64_t n) {
    int64_t at = -(int64_t)(uintptr_t)dst & (STEP - 1);
    __m128i one[WORDS], other[WORDS];
    at = at < n ? at : n;
    memcpy(dst, src, at);
    for (; at + TURN <= n; at += TURN)
        for (int64_t k = at; k < at + PAGE; k += STEP) {
            if (at + 2 * TURN <= n) { /* behind the end others may be writing */
                _mm_prefetch((const char *)src + k + TURN, _MM_HINT_T0);
                _mm_prefetch((const char *)src + k + PAGE + TURN, _MM_HINT_T0);
            }
            read_line(one, src + k);
            read_line(other, src + k + PAGE);
            write_line(dst + k, one);
            write_line(dst + k + PAGE, other);
        }
    for (; at + STEP <= n; at += STEP) {
        read_line(one, src + at);
        write_line(dst + at, one);
    }
    memcpy(dst + at, src + at, n - at);
    _mm_sfence();
}
#else
void he_stream(unsigned char *dst, const unsigned char *src, int64_t n) { memcpy(dst, src, n); }
#endif
