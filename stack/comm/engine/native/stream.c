/* Writing what is not read again soon past the cache: the old bytes need not be fetched first. */
#include "engine.h"
#ifdef __x86_64__
#include <emmintrin.h>

/* Like memcpy; for 64 bytes at a time that lie on a line of the cache. What is written is seen by all once this is. */
void he_stream(unsigned char *dst, const unsigned char *src, int64_t n) {
    int64_t at = -(int64_t)(uintptr_t)dst & 63;
    at = at < n ? at : n;
    memcpy(dst, src, at);
    for (; at + 64 <= n; at += 64)
        for (int k = 0; k < 64; k += 16)
            _mm_stream_si128((__m128i *)(dst + at + k), _mm_loadu_si128((const __m128i *)(src + at + k)));
    memcpy(dst + at, src + at, n - at);
    _mm_sfence();
}
#else
void he_stream(unsigned char *dst, const unsigned char *src, int64_t n) { memcpy(dst, src, n); }
#endif
