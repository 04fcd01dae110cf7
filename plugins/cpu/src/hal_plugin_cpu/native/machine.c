/* What the processor can do, measured or asked; library symbols that generated code may need. */
#include "call.h"
#include <sys/syscall.h>
#include <unistd.h>
#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>

#define ROUNDS 20000
#define CHAINS 12 /* independent, so that the latency of one hides behind the others */

/* In assembly: a compiler would drop the work or spill it. W is "y" for 32 bytes and "z" for 64. */
#define FMA(W, N) "vfmadd231ps %%" W "mm12, %%" W "mm12, %%" W "mm" N "\n\t"
#define DOT_BF16(W, N) "vdpbf16ps %%" W "mm12, %%" W "mm12, %%" W "mm" N "\n\t"
#define DOT_I8(W, N) "vpdpbusd %%" W "mm12, %%" W "mm12, %%" W "mm" N "\n\t"
#define VEX_DOT_I8(W, N) "%{vex%} vpdpbusd %%" W "mm12, %%" W "mm12, %%" W "mm" N "\n\t"
#define CHAIN(W, F)                                                                              \
    F(W, "0") F(W, "1") F(W, "2") F(W, "3") F(W, "4") F(W, "5") F(W, "6") F(W, "7") F(W, "8")     \
    F(W, "9") F(W, "10") F(W, "11")

#define MEASURE(NAME, W, CLEAR, OPERATION)                                                       \
    static double NAME(void) {                                                                   \
        int64_t rounds = ROUNDS, start_ns = hc_now();                                            \
        __asm__ volatile(CHAIN(W, CLEAR) CLEAR(W, "12")                                          \
                         "1:\n\t" CHAIN(W, OPERATION) "dec %0\n\tjnz 1b\n\tvzeroupper"           \
                         : "+r"(rounds)                                                          \
                         :                                                                       \
                         : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", \
                           "xmm8", "xmm9", "xmm10", "xmm11", "xmm12");                           \
        return (double)ROUNDS * CHAINS / (double)(hc_now() - start_ns + 1) * 1e9;                \
    }

#define CLEAR_32(W, N) "vpxor %%ymm" N ", %%ymm" N ", %%ymm" N "\n\t"
#define CLEAR_64(W, N) "vpxord %%zmm" N ", %%zmm" N ", %%zmm" N "\n\t"

MEASURE(fma_256, "y", CLEAR_32, FMA)
MEASURE(fma_512, "z", CLEAR_64, FMA)
MEASURE(bf16_512, "z", CLEAR_64, DOT_BF16)
MEASURE(i8_512, "z", CLEAR_64, DOT_I8)
MEASURE(i8_256, "y", CLEAR_32, VEX_DOT_I8)

/* Tile registers: palette 1, eight of 16 rows of 64 bytes. Four sums wait for one another, a quarter of the time. */
typedef struct { uint8_t palette, start, none[14]; uint16_t nbytes[16]; uint8_t rows[16]; } tile_config;

#define TILE_SUMS 4

#define MEASURE_TILES(NAME, OPERATION)                                                            \
    static double NAME(void) {                                                                   \
        tile_config config = {.palette = 1};                                                      \
        for (int i = 0; i < 8; i++) config.nbytes[i] = 64, config.rows[i] = 16;                   \
        int64_t rounds = ROUNDS / 10, start_ns = hc_now();                                        \
        __asm__ volatile("ldtilecfg %1\n\t"                                                       \
                         "tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\t"             \
                         "tilezero %%tmm3\n\ttilezero %%tmm4\n\ttilezero %%tmm5\n"               \
                         "1:\n\t" OPERATION " %%tmm5, %%tmm4, %%tmm0\n\t"                         \
                         OPERATION " %%tmm5, %%tmm4, %%tmm1\n\t"                                 \
                         OPERATION " %%tmm5, %%tmm4, %%tmm2\n\t"                                 \
                         OPERATION " %%tmm5, %%tmm4, %%tmm3\n\t"                                 \
                         "dec %0\n\tjnz 1b\n\ttilerelease"                                        \
                         : "+r"(rounds)                                                          \
                         : "m"(config)                                                           \
                         : "cc", "memory");                                                      \
        return (double)(ROUNDS / 10) * TILE_SUMS / (double)(hc_now() - start_ns + 1) * 1e9;       \
    }

MEASURE_TILES(tile_bf16, "tdpbf16ps")
MEASURE_TILES(tile_f16, "tdpfp16ps")
MEASURE_TILES(tile_i8, "tdpbssd")

static double best_of_three(double (*measure)(void)) {
    double best = 0;
    for (int i = 0; i < 3; i++) {
        double rate = measure();
        best = rate > best ? rate : best;
    }
    return best;
}

/* Bit 4 of EAX of CPUID's leaf 7.1; compilers of this age do not know its name. The registers' state is what AVX2
 * needs. */
static int has_avxvnni(void) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __builtin_cpu_supports("avx2") && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

#define TILE_BF16 (1u << 22) /* of EDX of CPUID's leaf 7 */
#define TILES (1u << 24)
#define TILE_I8 (1u << 25)
#define TILE_F16 (1u << 21) /* of EAX of leaf 7.1 */

/* Whether the processor has tile registers and those features of them, and the kernel gives this process their state,
 * for which it is asked once. */
static int has_tiles(unsigned first, unsigned second) {
    static int allowed = -1;
    unsigned a = 0, b = 0, c = 0, d = 0, more = 0;
    first |= TILES;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & first) != first) return 0;
    if (second && (!__get_cpuid_count(7, 1, &more, &b, &c, &d) || (more & second) != second)) return 0;
    if (allowed < 0) allowed = syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) == 0;
    return allowed;
}

static double vectors_per_s(int *nbytes) {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
    int wide = __builtin_cpu_supports("avx512f");
    *nbytes = wide ? 64 : 32;
    return best_of_three(wide ? fma_512 : fma_256);
}

int hc_has_unit(int unit) {
    switch (unit) {
    case HC_DOT_BF16: return __builtin_cpu_supports("avx512bf16") != 0;
    case HC_DOT_I8: return __builtin_cpu_supports("avx512vnni") != 0;
    case HC_DOT_I8_256: return has_avxvnni();
    case HC_TILE_BF16: return has_tiles(TILE_BF16, 0);
    case HC_TILE_F16: return has_tiles(0, TILE_F16);
    case HC_TILE_I8: return has_tiles(TILE_I8, 0);
    case HC_SCALE: return __builtin_cpu_supports("avx512f") != 0;
    default: return 0;
    }
}

static double dots_per_s(int unit) {
    switch (unit) {
    case HC_DOT_BF16: return best_of_three(bf16_512);
    case HC_DOT_I8: return best_of_three(i8_512);
    case HC_DOT_I8_256: return best_of_three(i8_256);
    case HC_TILE_BF16: return best_of_three(tile_bf16);
    case HC_TILE_F16: return best_of_three(tile_f16);
    case HC_TILE_I8: return best_of_three(tile_i8);
    default: return 0;
    }
}
#else
static double vectors_per_s(int *nbytes) { return *nbytes = 0; }
int hc_has_unit(int unit) { return 0 * unit; }
static double dots_per_s(int unit) { return 0 * unit; }
#endif

/* Operations per second of one core with elements of that many bits (a fused multiply-add is two); 0: not known.
 * The best of three runs of about 50 us each. */
double hc_fma_rate(int bits) {
    int nbytes = 0;
    double rate = vectors_per_s(&nbytes);
    return rate * nbytes * 8 / bits * 2;
}

/* Instructions of that kind per second of one core, measured in the same way; 0: it has none. */
double hc_dot_rate(int unit) { return hc_has_unit(unit) ? dots_per_s(unit) : 0; }

/* The compiler's run-time calls for half precision, for code generated on processors without an instruction for
 * them. Half values travel in the low bits of an SSE register. */
#ifdef __x86_64__
static __m128i from_bits(uint16_t bits) { return _mm_cvtsi32_si128(bits); }
static __m128i truncdfhf2(double x) { return from_bits(hc_half_from_double(x)); }
static __m128i truncsfhf2(float x) { return from_bits(hc_half_from_double(x)); }

static float extendhfsf2(__m128i x) {
    uint16_t bits = (uint16_t)_mm_cvtsi128_si32(x);
    float out;
    hc_f16_to_f32(&out, &bits, 1);
    return out;
}

static __m128i truncsfbf2(float x) {
    uint16_t bits;
    hc_f32_to_bf16(&bits, &x, 1);
    return from_bits(bits);
}
#endif

void *hc_symbol(const char *name) {
#ifdef __x86_64__
    if (!strcmp(name, "__truncdfhf2")) return (void *)truncdfhf2;
    if (!strcmp(name, "__truncsfhf2")) return (void *)truncsfhf2;
    if (!strcmp(name, "__extendhfsf2")) return (void *)extendhfsf2;
    if (!strcmp(name, "__truncsfbf2")) return (void *)truncsfbf2;
#endif
    (void)name;
    return NULL;
}
