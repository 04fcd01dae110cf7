/* Writing what is not read again soon past the cache: the old bytes need not be fetched first. */
#include "engine.h"
#ifdef __x86_64__
#include <emmintrin.h>

enum { STEP = 64, PAGE = 4096, TURN = 4 * PAGE }; /* STEP: a line of the cache */

static inline void step(unsigned char *dst, const unsigned char *src) {
    for (int k = 0; k < STEP; k += 16) _mm_stream_si128((__m128i *)(dst + k), _mm_loadu_si128((const __m128i *)(src + k)));
}

/* Four pages take turns, a line each, so that as many pages of memory are open and four streams are fetched ahead; a processor
 * fetches ahead within a page alone, and so is told of the next four. What is written is seen by all once this is. */
void he_stream(unsigned char *dst, const unsigned char *src, int64_t n) {
    int64_t at = -(int64_t)(uintptr_t)dst & (STEP - 1);
    at = at < n ? at : n;
    memcpy(dst, src, at);
    for (; at + TURN <= n; at += TURN)
        for (int k = 0; k < PAGE; k += STEP)
            for (int p = k; p < TURN; p += PAGE) {
                _mm_prefetch((const char *)src + at + p + TURN, _MM_HINT_T0); /* which fails nowhere, also not past the end */
                step(dst + at + p, src + at + p);
            }
    for (; at + STEP <= n; at += STEP) step(dst + at, src + at);
    memcpy(dst + at, src + at, n - at);
    _mm_sfence();
}
#else
void he_stream(unsigned char *dst, const unsigned char *src, int64_t n) { memcpy(dst, src, n); }
#endif
