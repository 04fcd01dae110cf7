/* Conversions of float16, bfloat16 and 8-bit floats, to nearest even. */
#include "call.h"
#ifdef __x86_64__
#include <immintrin.h>
#endif

static uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}

void hc_bf16_to_f32(float *dst, const uint16_t *src, int64_t n) {
    for (int64_t i = 0; i < n; i++) dst[i] = float_of((uint32_t)src[i] << 16);
}

void hc_f32_to_bf16(uint16_t *dst, const float *src, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = bits_of(src[i]);
        uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
        dst[i] = (u & 0x7fffffff) > 0x7f800000 ? (uint16_t)((u >> 16) | 0x40) : (uint16_t)rounded;
    }
}

static float half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    if (rest >= 0x7c00) return float_of(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    if (rest < 0x400) return float_of(sign | bits_of((float)rest * 0x1p-24f));
    return float_of(sign | ((rest << 13) + (112u << 23)));
}

/* From double, so that double -> half rounds once. */
uint16_t hc_half_from_double(double x) {
    uint64_t u;
    memcpy(&u, &x, 8);
    uint16_t sign = (uint16_t)(u >> 48) & 0x8000;
    u &= 0x7fffffffffffffffULL;
    if (u > 0x7ff0000000000000ULL) return sign | 0x7e00 | (uint16_t)(u >> 42 & 0x3ff);
    memcpy(&x, &u, 8);
    if (x >= 65520.0) return sign | 0x7c00;
    if (x < 0x1p-14) { /* subnormal: a multiple of 2^-24, rounded by the addition */
        double shifted = x + 0x1p28;
        return sign | (uint16_t)((shifted - 0x1p28) * 0x1p24);
    }
    u += 0x1ffffffffffULL + (u >> 42 & 1);
    return sign | (uint16_t)((u >> 42) - (1008ULL << 10));
}

#ifdef __x86_64__
__attribute__((target("avx,f16c"))) static void f16_to_f32_fast(float *dst, const uint16_t *src, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(src + i))));
    for (; i < n; i++) dst[i] = half_to_float(src[i]);
}

__attribute__((target("avx,f16c"))) static void f32_to_f16_fast(uint16_t *dst, const float *src, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(dst + i), _mm256_cvtps_ph(_mm256_loadu_ps(src + i), 0));
    for (; i < n; i++) dst[i] = hc_half_from_double(src[i]);
}
#endif

void hc_f16_to_f32(float *dst, const uint16_t *src, int64_t n) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("f16c")) {
        f16_to_f32_fast(dst, src, n);
        return;
    }
#endif
    for (int64_t i = 0; i < n; i++) dst[i] = half_to_float(src[i]);
}

void hc_f32_to_f16(uint16_t *dst, const float *src, int64_t n) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("f16c")) {
        f32_to_f16_fast(dst, src, n);
        return;
    }
#endif
    for (int64_t i = 0; i < n; i++) dst[i] = hc_half_from_double(src[i]);
}

/* 8-bit floats: `m` bits of significand, a bias of the exponent; from `top` on the codes are infinity and NaN, or NaN alone. */
typedef struct { int m, bias; uint32_t top; float beyond; } f8;
static const f8 E4M3FN = {3, 7, 0x7f, 464.0f}, E5M2 = {2, 15, 0x7c, 0x1p16f};

void hc_f8_to_f32(int dtype, float *dst, const uint8_t *src, int64_t n) {
    const f8 t = dtype == F8E4M3FN ? E4M3FN : E5M2;
    for (int64_t i = 0; i < n; i++) {
        uint32_t code = src[i] & 0x7f, usual = (code << (23 - t.m)) + ((uint32_t)(127 - t.bias) << 23);
        uint32_t odd = 0x7f800000 | (code != 0x7c) << 22;
        float step = float_of((uint32_t)(128 - t.bias - t.m) << 23);
        uint32_t value = code >= t.top ? odd : code < 1u << t.m ? bits_of((float)code * step) : usual;
        dst[i] = float_of(value | (uint32_t)(src[i] & 0x80) << 24);
    }
}

void hc_f32_to_f8(int dtype, uint8_t *dst, const float *src, int64_t n) {
    const f8 t = dtype == F8E4M3FN ? E4M3FN : E5M2;
    const uint32_t drop = 23 - t.m, most = bits_of(t.beyond), lowest = (uint32_t)(128 - t.bias) << 23;
    const float rounder = float_of((uint32_t)(128 - t.bias + drop) << 23);
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = bits_of(src[i]), rest = u & 0x7fffffff, code;
        if (rest > 0x7f800000) code = 0x7f;
        else if (rest > most) code = t.top;
        else if (rest < lowest) code = bits_of(float_of(rest) + rounder) - bits_of(rounder);
        else code = (rest + (1u << (drop - 1)) - 1 + (rest >> drop & 1) - ((uint32_t)(127 - t.bias) << 23)) >> drop;
        dst[i] = (uint8_t)(code | (u >> 24 & 0x80));
    }
}
