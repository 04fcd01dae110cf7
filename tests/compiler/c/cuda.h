/* CUDA C as C of the host, on top of host.h: threads of a block are its fibers. */
typedef signed char schar;
#define HAL_PROGRAM_0 group_id[0]
#define HAL_PROGRAM_1 group_id[1]
#define HAL_PROGRAM_2 group_id[2]
#define HAL_GRID_0 group_count[0]
#define HAL_GRID_1 group_count[1]
#define HAL_GRID_2 group_count[2]
struct coordinate { int x; };
typedef struct { uint x, y; } uint2;
typedef struct { uint x, y, z, w; } uint4;
#define threadIdx (*(struct coordinate *)&current)
#define __syncthreads() barrier(0)

/* Every thread of a warp says its value, and reads another's when all have. */
static char said[MOST_LANES][8];
#define __shfl_xor_sync(members, value, bits) ({ \
    __typeof__(value) own = (value), other; \
    memcpy(said[current], &own, sizeof own); \
    barrier(0); \
    memcpy(&other, said[current ^ (bits)], sizeof other); \
    barrier(0); \
    other; })

/* Fragments as the PTX ISA lays them out for m16n8k16 (sections "Matrix Fragments for mma.m16n8k16
   with floating point type"): thread t of a warp has g = t / 4 and c = t % 4. */
static uint fragments[MOST_LANES][6];
static float wide_bf16(uint bits) { return as_float(bits << 16); }
static float wide_f16(uint bits) {
    _Float16 x;
    ushort low = bits;
    memcpy(&x, &low, sizeof x);
    return x;
}
/* cvt.rn: to nearest even; of no number 0x7fff. */
static ushort hal_cvt_bf16(float x) {
    uint bits = as_uint(x);
    return x == x ? (bits + 0x7fff + (bits >> 16 & 1)) >> 16 : 0x7fff;
}
static ushort hal_cvt_f16(float x) {
    _Float16 narrow = x;
    ushort bits;
    memcpy(&bits, &narrow, sizeof bits);
    return x == x ? bits : 0x7fff;
}
static float hal_cvt_f32(ushort x) { return wide_f16(x); }
#define HAL_MMA(name) \
    static void hal_mma_##name(float *low, float *high, const uint *a, const uint *b) { \
        float *sums[4] = {low, low + 1, high, high + 1}; \
        memcpy(fragments[current], a, 16); \
        memcpy(fragments[current] + 4, b, 8); \
        barrier(0); \
        int warp = current / 32 * 32, g = current % 32 / 4, c = current % 4; \
        for (int i = 0; i < 4; i++) { \
            int row = g + 8 * (i / 2), column = 2 * c + i % 2; \
            for (int k = 0; k < 16; k++) { \
                uint left = fragments[warp + row % 8 * 4 + k % 8 / 2][row / 8 + 2 * (k / 8)]; \
                uint right = fragments[warp + column * 4 + k % 8 / 2][4 + k / 8]; \
                *sums[i] += wide_##name(k % 2 ? left >> 16 : left & 0xffff) * \
                        wide_##name(k % 2 ? right >> 16 : right & 0xffff); \
            } \
        } \
        barrier(0); \
    }
HAL_MMA(bf16)
HAL_MMA(f16)

/* ldmatrix of four 8 by 8 matrices of 16 bits: lane 8 i + r says where row r of matrix i is, at a
   multiple of 16 bytes; lane t gets of each the elements 2 (t % 4) and the next of row t / 4, or of
   column t / 4 where they are transposed. */
static const ushort *lines[MOST_LANES];
static void matrices(uint *to, const void *line, int turned) {
    if ((ulong)line % 16) abort();
    lines[current] = line;
    barrier(0);
    const ushort **warp = lines + current / 32 * 32;
    int g = current % 32 / 4, c = current % 4;
    for (int i = 0; i < 4; i++) {
        const ushort **rows = warp + 8 * i;
        uint low = turned ? rows[2 * c][g] : rows[g][2 * c];
        uint high = turned ? rows[2 * c + 1][g] : rows[g][2 * c + 1];
        to[i] = low | high << 16;
    }
    barrier(0);
}
static void hal_matrices(uint *to, const void *line) { matrices(to, line, 0); }
static void hal_matrices_turned(uint *to, const void *line) { matrices(to, line, 1); }

/* wgmma.m64nNk16, of operands that four warps read together (sections "Matrix Descriptor" and
   "Register Fragments for wgmma.mma_async.m64nNk16"): blocks of eight lines of eight elements, which
   lie along the summed axis, or along the other one where `turned` says so. */
#define MOST_BLOCKS 64
static struct block { const char *at; uint along, other; } blocks[MOST_LANES][MOST_BLOCKS];
static int block_count[MOST_LANES];
static ulong hal_wide_block(const void *at, uint along, uint other) {
    if ((ulong)at % 16 || along % 16 || other % 16 || along >> 18 || other >> 18) abort();
    int number = block_count[current]++ % MOST_BLOCKS;
    blocks[current][number] = (struct block){at, along, other};
    return number;
}
static uint in_block(struct block b, int i, int k, int turned) {
    ulong line = turned ? k % 8 : i % 8, within = turned ? i % 8 : k % 8;
    return *(const ushort *)(b.at + i / 8 * b.other + k / 8 * b.along + line * 16 + within * 2);
}
static void wide(float *d, int columns, int turned_a, int turned_b, ulong a, ulong b, float (*of)(uint)) {
    barrier(0);
    int warp = current % 128 / 32, g = current % 32 / 4, c = current % 4;
    for (int j = 0; j < columns / 8; j++) {
        for (int i = 0; i < 4; i++) {
            int row = 16 * warp + 8 * (i / 2) + g, column = 8 * j + 2 * c + i % 2;
            float *sum = d + i / 2 * (columns / 4) + 2 * j + i % 2;
            for (int k = 0; k < 16; k++)
                *sum += of(in_block(blocks[current][a], row, k, turned_a)) *
                        of(in_block(blocks[current][b], column, k, turned_b));
        }
    }
    barrier(0);
}
#define hal_wide_bf16(columns, turned_a, turned_b, d, a, b) wide(d, columns, turned_a, turned_b, a, b, wide_bf16)
#define hal_wide_f16(columns, turned_a, turned_b, d, a, b) wide(d, columns, turned_a, turned_b, a, b, wide_f16)
#define hal_wide_staged()
#define hal_wide_begin(d)
#define hal_wide_end(d)

/* cp.async: a copy is made when its thread waits for its group, and not before, so that a wait or a
   barrier left out changes what is read. It reads `given` bytes and writes zeros for the rest. */
#define MOST_COPIES 4096
static struct copy { void *to; const void *from; int nbytes, given, group; } copies[MOST_LANES][MOST_COPIES];
static int copy_count[MOST_LANES], copy_group[MOST_LANES];
static void begin_copy(void *to, const void *from, int nbytes, int given) {
    if ((ulong)to % nbytes || (ulong)from % nbytes || given < 0 || given > nbytes) abort();
    if (copy_count[current] == MOST_COPIES) abort();
    copies[current][copy_count[current]++] = (struct copy){to, from, nbytes, given, copy_group[current]};
}
static void await_copies(int newest) {
    int kept = 0;
    for (int i = 0; i < copy_count[current]; i++) {
        struct copy c = copies[current][i];
        if (c.group >= copy_group[current] - newest) {
            copies[current][kept++] = c;
            continue;
        }
        memcpy(c.to, c.from, c.given);
        memset((char *)c.to + c.given, 0, c.nbytes - c.given);
    }
    copy_count[current] = kept;
}
#define hal_async_copy4(to, from, given) begin_copy(to, from, 4, given)
#define hal_async_copy8(to, from, given) begin_copy(to, from, 8, given)
#define hal_async_copy16(to, from, given) begin_copy(to, from, 16, given)
#define hal_async_commit() (copy_group[current]++)
#define hal_async_wait0() await_copies(0)
#define hal_async_wait1() await_copies(1)
#define hal_async_wait2() await_copies(2)
