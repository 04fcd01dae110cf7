/* ChaCha20 and Poly1305 as in RFC 8439. Numbers of Poly1305 are kept in three limbs of 44, 44 and 42 bits. Long messages
 * go eight blocks at a time where the processor multiplies eight numbers of 52 bits at once (AVX-512 IFMA), else four
 * blocks at a time in five limbs of 26 bits where it has AVX2: each of so many sums takes every eighth (fourth) block and
 * is multiplied by that power of r; at the end the sums are multiplied by falling powers, and added up. */
#include "mac.h"
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

typedef unsigned __int128 wide;

#define M26 0x3ffffffULL
#define M42 0x3ffffffffffULL
#define M44 0xfffffffffffULL
#define BLOCK 16
#define MANY 512 /* bytes from which on several blocks at a time pay */
#define POWERS 8

/* The machines that this runs on are little-endian, as both algorithms are. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers lie in memory as in the specification");

static uint64_t load(const unsigned char *at) {
    uint64_t x;
    memcpy(&x, at, sizeof x);
    return x;
}

typedef uint32_t row __attribute__((vector_size(16)));

static inline row turned(row x, int by) { return x << by | x >> (32 - by); }

static inline row rotated(row x, int by) { return (row){x[by % 4], x[(by + 1) % 4], x[(by + 2) % 4], x[(by + 3) % 4]}; }

/* Four quarter rounds at once, of the columns of the state. */
static inline void quarters(row *a, row *b, row *c, row *d) {
    *a += *b, *d = turned(*d ^ *a, 16);
    *c += *d, *b = turned(*b ^ *c, 12);
    *a += *b, *d = turned(*d ^ *a, 8);
    *c += *d, *b = turned(*b ^ *c, 7);
}

void he_chacha20(const unsigned char *key, uint32_t counter, const unsigned char *nonce, unsigned char *out) {
    row a = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574}, b, c, d = {counter}, start[2];
    memcpy(&b, key, sizeof b);
    memcpy(&c, key + 16, sizeof c);
    memcpy((char *)&d + 4, nonce, HE_NONCE_NBYTES);
    start[0] = a, start[1] = b;
    for (int round = 0; round < 10; round++) {
        quarters(&a, &b, &c, &d);
        b = rotated(b, 1), c = rotated(c, 2), d = rotated(d, 3);
        quarters(&a, &b, &c, &d);
        b = rotated(b, 3), c = rotated(c, 2), d = rotated(d, 1);
    }
    start[0] += a, start[1] += b;
    memcpy(out, start, sizeof start);
}

typedef struct { uint64_t limb[3]; } number; /* 44, 44 and 42 bits */

typedef struct {
    number h, r[POWERS]; /* the sum; r to the powers 1 to 8, as far as they are needed */
    int powers;
    unsigned char rest[BLOCK];
    int64_t nrest;
} poly;

static number carried(wide d0, wide d1, wide d2) {
    d1 += (uint64_t)(d0 >> 44);
    d2 += (uint64_t)(d1 >> 44);
    uint64_t h0 = ((uint64_t)d0 & M44) + (uint64_t)(d2 >> 42) * 5, h1 = (uint64_t)d1 & M44;
    return (number){{h0 & M44, h1 + (h0 >> 44), (uint64_t)d2 & M42}};
}

/* a * r modulo 2^130 - 5, not wholly reduced. */
static inline number product(number a, number r) {
    uint64_t s1 = r.limb[1] * 20, s2 = r.limb[2] * 20; /* 5, and 4 for the bits between limbs and 2^130 */
    const uint64_t *x = a.limb, *y = r.limb;
    wide d0 = (wide)x[0] * y[0] + (wide)x[1] * s2 + (wide)x[2] * s1;
    wide d1 = (wide)x[0] * y[1] + (wide)x[1] * y[0] + (wide)x[2] * s2;
    wide d2 = (wide)x[0] * y[2] + (wide)x[1] * y[1] + (wide)x[2] * y[0];
    return carried(d0, d1, d2);
}

static inline number plus(number h, uint64_t low, uint64_t high, uint64_t top) {
    h.limb[0] += low & M44;
    h.limb[1] += (low >> 44 | high << 20) & M44;
    h.limb[2] += high >> 24 | top << 40;
    return h;
}

static void blocks(poly *p, const unsigned char *at, int64_t nbytes) {
    number h = p->h;
    for (; nbytes >= BLOCK; at += BLOCK, nbytes -= BLOCK) h = product(plus(h, load(at), load(at + 8), 1), p->r[0]);
    p->h = h;
}

#ifdef __x86_64__
typedef struct { uint64_t limb[5]; } five; /* 26 bits each */

static five fives_of(number a) {
    const uint64_t *x = a.limb;
    uint64_t low = x[1] & ((1 << 8) - 1), carry = x[1] >> 44; /* the second limb may be a bit longer */
    uint64_t x1 = x[1] & M44, x2 = x[2] + carry;
    return (five){{x[0] & M26, (x[0] >> 26 | low << 18) & M26, x1 >> 8 & M26, (x1 >> 34 | x2 << 10) & M26, x2 >> 16}};
}

static number threes_of(const uint64_t *sum) {
    wide d0 = (wide)sum[0] + ((wide)sum[1] << 26), d1 = ((wide)sum[2] << 8) + ((wide)sum[3] << 34), d2 = (wide)sum[4] << 16;
    return carried(d0, d1, d2);
}

/* The columns of a product of five limbs: h times r, s is 5 times r. */
#define COLUMN(a, b, c, d, e) \
    _mm256_add_epi64(_mm256_add_epi64(_mm256_add_epi64(_mm256_mul_epu32(h0, a), _mm256_mul_epu32(h1, b)), \
                                      _mm256_add_epi64(_mm256_mul_epu32(h2, c), _mm256_mul_epu32(h3, d))), \
                     _mm256_mul_epu32(h4, e))
#define CARRY(from, to) \
    to = _mm256_add_epi64(to, _mm256_srli_epi64(from, 26)); \
    from = _mm256_and_si256(from, mask)

/* Lanes are blocks 0, 2, 1, 3 of every four; at the end they are multiplied by r to the 4th, 2nd, 3rd and 1st power. */
__attribute__((target("avx2"))) static void four_blocks(poly *p, const unsigned char *at, int64_t nbytes) {
    const __m256i mask = _mm256_set1_epi64x(M26), top = _mm256_set1_epi64x(1 << 24);
    five power[4], start = fives_of(p->h);
    for (int i = 0; i < 4; i++) power[i] = fives_of(p->r[i]);
    __m256i r[5], s[5];
    for (int i = 0; i < 5; i++) {
        r[i] = _mm256_set1_epi64x((long long)power[3].limb[i]);
        s[i] = _mm256_set1_epi64x((long long)power[3].limb[i] * 5);
    }
    __m256i h0 = _mm256_setr_epi64x((long long)start.limb[0], 0, 0, 0), h1 = _mm256_setr_epi64x((long long)start.limb[1], 0, 0, 0);
    __m256i h2 = _mm256_setr_epi64x((long long)start.limb[2], 0, 0, 0), h3 = _mm256_setr_epi64x((long long)start.limb[3], 0, 0, 0);
    __m256i h4 = _mm256_setr_epi64x((long long)start.limb[4], 0, 0, 0);
    for (; nbytes > 0; at += 64, nbytes -= 64) {
        __m256i a = _mm256_loadu_si256((const __m256i *)at), b = _mm256_loadu_si256((const __m256i *)(at + 32));
        __m256i low = _mm256_unpacklo_epi64(a, b), high = _mm256_unpackhi_epi64(a, b);
        h0 = _mm256_add_epi64(h0, _mm256_and_si256(low, mask));
        h1 = _mm256_add_epi64(h1, _mm256_and_si256(_mm256_srli_epi64(low, 26), mask));
        h2 = _mm256_add_epi64(h2, _mm256_and_si256(_mm256_or_si256(_mm256_srli_epi64(low, 52), _mm256_slli_epi64(high, 12)), mask));
        h3 = _mm256_add_epi64(h3, _mm256_and_si256(_mm256_srli_epi64(high, 14), mask));
        h4 = _mm256_add_epi64(h4, _mm256_or_si256(_mm256_srli_epi64(high, 40), top));
        if (nbytes == 64) /* the last ones: each lane's own power */
            for (int i = 0; i < 5; i++) {
                r[i] = _mm256_setr_epi64x((long long)power[3].limb[i], (long long)power[1].limb[i], (long long)power[2].limb[i], (long long)power[0].limb[i]);
                s[i] = _mm256_add_epi64(r[i], _mm256_slli_epi64(r[i], 2));
            }
        __m256i d0 = COLUMN(r[0], s[4], s[3], s[2], s[1]), d1 = COLUMN(r[1], r[0], s[4], s[3], s[2]);
        __m256i d2 = COLUMN(r[2], r[1], r[0], s[4], s[3]), d3 = COLUMN(r[3], r[2], r[1], r[0], s[4]);
        __m256i d4 = COLUMN(r[4], r[3], r[2], r[1], r[0]);
        CARRY(d3, d4);
        CARRY(d0, d1);
        __m256i over = _mm256_srli_epi64(d4, 26);
        d4 = _mm256_and_si256(d4, mask);
        d0 = _mm256_add_epi64(d0, _mm256_add_epi64(over, _mm256_slli_epi64(over, 2)));
        CARRY(d1, d2);
        CARRY(d2, d3);
        CARRY(d0, d1);
        CARRY(d3, d4);
        h0 = d0, h1 = d1, h2 = d2, h3 = d3, h4 = d4;
    }
    uint64_t lanes[5][4], sum[5];
    _mm256_storeu_si256((__m256i *)lanes[0], h0);
    _mm256_storeu_si256((__m256i *)lanes[1], h1);
    _mm256_storeu_si256((__m256i *)lanes[2], h2);
    _mm256_storeu_si256((__m256i *)lanes[3], h3);
    _mm256_storeu_si256((__m256i *)lanes[4], h4);
    for (int i = 0; i < 5; i++) sum[i] = lanes[i][0] + lanes[i][1] + lanes[i][2] + lanes[i][3];
    p->h = threes_of(sum);
}

#define LOW(sum, a, b) _mm512_madd52lo_epu64(sum, a, b)
#define HIGH(sum, a, b) _mm512_madd52hi_epu64(sum, a, b)
#define EACH(part, a, b, c, d, e, f) part(part(part(_mm512_setzero_si512(), a, b), c, d), e, f)

/* Lanes are blocks 0, 4, 1, 5, 2, 6, 3, 7 of every eight. */
__attribute__((target("avx512f,avx512ifma"))) static void eight_blocks(poly *p, const unsigned char *at, int64_t nbytes) {
    const __m512i mask44 = _mm512_set1_epi64(M44), mask42 = _mm512_set1_epi64(M42), top = _mm512_set1_epi64(1LL << 40);
    static const int power_of_lane[8] = {7, 3, 6, 2, 5, 1, 4, 0};
    uint64_t lanes[3][8];
    __m512i r[3], s1, s2, h[3];
    for (int i = 0; i < 3; i++) {
        r[i] = _mm512_set1_epi64((long long)p->r[7].limb[i]);
        h[i] = _mm512_setr_epi64((long long)p->h.limb[i], 0, 0, 0, 0, 0, 0, 0);
    }
    for (; nbytes > 0; at += 128, nbytes -= 128) {
        __m512i a = _mm512_loadu_si512(at), b = _mm512_loadu_si512(at + 64);
        __m512i low = _mm512_unpacklo_epi64(a, b), high = _mm512_unpackhi_epi64(a, b);
        __m512i x0 = _mm512_add_epi64(h[0], _mm512_and_si512(low, mask44));
        __m512i x1 = _mm512_add_epi64(h[1], _mm512_and_si512(_mm512_or_si512(_mm512_srli_epi64(low, 44), _mm512_slli_epi64(high, 20)), mask44));
        __m512i x2 = _mm512_add_epi64(h[2], _mm512_or_si512(_mm512_srli_epi64(high, 24), top));
        if (nbytes == 128) { /* the last ones: each lane's own power */
            for (int i = 0; i < 3; i++) {
                for (int lane = 0; lane < 8; lane++) lanes[i][lane] = p->r[power_of_lane[lane]].limb[i];
                r[i] = _mm512_loadu_si512(lanes[i]);
            }
        }
        s1 = _mm512_add_epi64(_mm512_slli_epi64(r[1], 4), _mm512_slli_epi64(r[1], 2));
        s2 = _mm512_add_epi64(_mm512_slli_epi64(r[2], 4), _mm512_slli_epi64(r[2], 2));
        __m512i d0 = EACH(LOW, x0, r[0], x1, s2, x2, s1), u0 = EACH(HIGH, x0, r[0], x1, s2, x2, s1);
        __m512i d1 = EACH(LOW, x0, r[1], x1, r[0], x2, s2), u1 = EACH(HIGH, x0, r[1], x1, r[0], x2, s2);
        __m512i d2 = EACH(LOW, x0, r[2], x1, r[1], x2, r[0]), u2 = EACH(HIGH, x0, r[2], x1, r[1], x2, r[0]);
        /* a high part counts 2^52 of its limb: 2^8 of the next one, or 2^10 times 2^130 */
        d1 = _mm512_add_epi64(d1, _mm512_add_epi64(_mm512_slli_epi64(u0, 8), _mm512_srli_epi64(d0, 44)));
        d2 = _mm512_add_epi64(d2, _mm512_add_epi64(_mm512_slli_epi64(u1, 8), _mm512_srli_epi64(d1, 44)));
        u2 = _mm512_add_epi64(_mm512_slli_epi64(u2, 10), _mm512_srli_epi64(d2, 42));
        d0 = _mm512_add_epi64(_mm512_and_si512(d0, mask44), _mm512_add_epi64(u2, _mm512_slli_epi64(u2, 2)));
        h[0] = _mm512_and_si512(d0, mask44);
        h[1] = _mm512_add_epi64(_mm512_and_si512(d1, mask44), _mm512_srli_epi64(d0, 44));
        h[2] = _mm512_and_si512(d2, mask42);
    }
    wide sum[3] = {0};
    for (int i = 0; i < 3; i++) {
        _mm512_storeu_si512(lanes[i], h[i]);
        for (int lane = 0; lane < 8; lane++) sum[i] += lanes[i][lane];
    }
    p->h = carried(sum[0], sum[1], sum[2]);
}

/* How many blocks go at a time. */
static int at_a_time(void) {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512ifma")) return 8;
    return __builtin_cpu_supports("avx2") ? 4 : 1;
}

static void several_blocks(poly *p, const unsigned char *at, int64_t nbytes, int width) {
    (width == 8 ? eight_blocks : four_blocks)(p, at, nbytes);
}
#else
static int at_a_time(void) { return 1; }

static void several_blocks(poly *p, const unsigned char *at, int64_t nbytes, int width) { blocks(p, at, nbytes); }
#endif

int he_mac_width = 1;

__attribute__((constructor)) static void choose(void) { he_mac_width = at_a_time(); }

/* Whole blocks. */
static void absorb(poly *p, const unsigned char *at, int64_t nbytes) {
    int width = nbytes >= MANY ? he_mac_width : 1;
    int64_t many = width > 1 ? nbytes / (width * BLOCK) * (width * BLOCK) : 0;
    if (many) {
        for (; p->powers < width; p->powers++) p->r[p->powers] = product(p->r[p->powers - 1], p->r[0]);
        several_blocks(p, at, many, width);
    }
    blocks(p, at + many, nbytes - many);
}

static void begin(poly *p, const unsigned char *key) {
    uint64_t low = load(key) & 0x0ffffffc0fffffffULL, high = load(key + 8) & 0x0ffffffc0ffffffcULL;
    *p = (poly){.powers = 1};
    p->r[0] = plus(p->r[0], low, high, 0);
}

static void add(poly *p, const unsigned char *at, int64_t nbytes) {
    if (p->nrest) {
        int64_t n = nbytes < BLOCK - p->nrest ? nbytes : BLOCK - p->nrest;
        memcpy(p->rest + p->nrest, at, n);
        p->nrest += n;
        at += n;
        nbytes -= n;
        if (p->nrest < BLOCK) return;
        absorb(p, p->rest, BLOCK);
        p->nrest = 0;
    }
    int64_t whole = nbytes / BLOCK * BLOCK;
    if (whole) absorb(p, at, whole);
    if (nbytes > whole) memcpy(p->rest, at + whole, nbytes - whole);
    p->nrest = nbytes - whole;
}

/* The last block, which is shorter. */
static void finish_rest(poly *p) {
    if (!p->nrest) return;
    p->rest[p->nrest] = 1;
    memset(p->rest + p->nrest + 1, 0, BLOCK - p->nrest - 1);
    p->h = product(plus(p->h, load(p->rest), load(p->rest + 8), 0), p->r[0]);
}

/* Wholly reduced, plus the second half of the key modulo 2^128. */
static void end(poly *p, const unsigned char *key, unsigned char *tag) {
    uint64_t h0 = p->h.limb[0], h1 = p->h.limb[1], h2 = p->h.limb[2];
    for (int i = 0; i < 2; i++) {
        h1 += h0 >> 44, h0 &= M44;
        h2 += h1 >> 44, h1 &= M44;
        h0 += (h2 >> 42) * 5, h2 &= M42;
    }
    h1 += h0 >> 44, h0 &= M44;
    uint64_t g0 = h0 + 5, g1 = h1 + (g0 >> 44), g2 = h2 + (g1 >> 44) - (1ULL << 42);
    uint64_t keep = -(g2 >> 63); /* all ones where h is less than 2^130 - 5 */
    h0 = (h0 & keep) | (g0 & M44 & ~keep);
    h1 = (h1 & keep) | (g1 & M44 & ~keep);
    h2 = (h2 & keep) | (g2 & ~keep);
    wide sum = ((wide)h0 | (wide)h1 << 44 | (wide)h2 << 88) + ((wide)load(key) | (wide)load(key + 8) << 64);
    memcpy(tag, &sum, HE_TAG_NBYTES);
}

void he_poly1305(const unsigned char *key, const he_piece *pieces, int n, unsigned char *tag) {
    poly p;
    begin(&p, key);
    for (int i = 0; i < n; i++) add(&p, pieces[i].at, pieces[i].nbytes);
    finish_rest(&p);
    end(&p, key + 16, tag);
}

void he_mac(const unsigned char *key, const unsigned char *nonce, const he_piece *pieces, int n, unsigned char *tag) {
    unsigned char once[32];
    poly p;
    uint64_t lengths[2] = {0, 0}; /* of the additional data, and of what is encrypted */
    he_chacha20(key, 0, nonce, once);
    begin(&p, once);
    for (int i = 0; i < n; i++) {
        add(&p, pieces[i].at, pieces[i].nbytes);
        lengths[0] += (uint64_t)pieces[i].nbytes;
    }
    static const unsigned char filling[BLOCK];
    if (p.nrest) add(&p, filling, BLOCK - p.nrest);
    add(&p, (const unsigned char *)lengths, sizeof lengths);
    end(&p, once + 16, tag);
}

int he_same_tag(const unsigned char *a, const unsigned char *b) {
    uint64_t different = (load(a) ^ load(b)) | (load(a + 8) ^ load(b + 8));
    return different == 0;
}
