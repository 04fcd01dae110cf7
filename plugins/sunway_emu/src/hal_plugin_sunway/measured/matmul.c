/* c = a @ b for square row-major matrices of float64, or with HALF of float16 with sums in float32. The
 * edge n is a multiple of 8 * TILE.
 *
 * The array computes one block of 8 * TILE by 8 * TILE of c at a time. Each CPE keeps a tile of it in
 * LDM. In a step the CPEs of a row share their pieces of a, those of a column their pieces of b: one
 * after the other broadcasts its own over the mesh. Pieces come in by DMA two steps deep. The inner
 * kernel holds 8 x 2 vectors of c in registers.
 *
 * With `only_time` nothing is computed: what a CPE takes does not depend on its numbers. */
#include <slave.h>

#ifdef HALF
typedef _Float16 number;
typedef float total;
enum { TILE = 192, DEPTH = 24, LANES = 32 };
const char matmul_params[] = "buffer f16, buffer f16, buffer f16, scalar i64, scalar i64";
#define WORK(flops) athread_work_f16(flops)
#else
typedef double number;
typedef double total;
enum { TILE = 96, DEPTH = 24, LANES = 8 };
const char matmul_params[] = "buffer f64, buffer f64, buffer f64, scalar i64, scalar i64";
#define WORK(flops) athread_work_f64(flops)
#endif
enum { PIECE = TILE * DEPTH, ROWS = 8, VECTORS = 2, WIDE = LANES * VECTORS };

struct args {
    long grid[3];
    number *a, *b, *c;
    long n, only_time;
};

#define LDM __thread_local __attribute__((aligned(64)))
LDM number own_a[2][PIECE];
LDM number own_b[2][PIECE];
LDM number got_a[2][PIECE];
LDM number got_b[2][PIECE];
LDM total sum[TILE * TILE];
__thread_local athread_rply_t fetched, sent, came_a[2], came_b[2];

static void fetch(const struct args *p, long row, long col, long step, long slot) {
    enum { A = DEPTH * sizeof(number), B = TILE * sizeof(number) };
    long n = p->n, k = step * 8 * DEPTH, wide = n * (long)sizeof(number);
    if (k >= n) return;
    athread_dma_iget_stride(own_a[slot], p->a + row * n + k + _COL * DEPTH, TILE * A, A, wide - A, &fetched);
    athread_dma_iget_stride(own_b[slot], p->b + (k + _ROW * DEPTH) * n + col, DEPTH * B, B, wide - B, &fetched);
}

/* Turn `t` of a step: CPE t of each row gives its piece of a, CPE t of each column its piece of b. */
static void give(long t, long slot, long to) {
    if (_COL == t) athread_rma_row_ibcast(got_a[to], own_a[slot], sizeof own_a[slot], &sent, &came_a[to]);
    if (_ROW == t) athread_rma_col_ibcast(got_b[to], own_b[slot], sizeof own_b[slot], &sent, &came_b[to]);
}

static void kernel(total *c, const number *a, const number *b) {
    total s[ROWS][WIDE];
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < WIDE; j++) s[i][j] = c[i * TILE + j];
    for (int k = 0; k < DEPTH; k++)
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < WIDE; j++) s[i][j] += (total)a[i * DEPTH + k] * (total)b[k * TILE + j];
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < WIDE; j++) c[i * TILE + j] = s[i][j];
}

/* What the inner kernels of one turn cost: multiplications and additions; and an access to LDM for each
 * vector of b, each number of a (which fills a vector register), and each vector of c in and out. */
static void count(void) {
    double kernels = (double)(TILE / ROWS) * (TILE / WIDE);
    double vectors_of_c = (double)ROWS * WIDE * sizeof(total) / 64;
    WORK(2.0 * TILE * TILE * DEPTH);
    athread_work_ldm(64 * kernels * (DEPTH * (VECTORS + ROWS) + 2 * vectors_of_c));
}

static void multiply(const struct args *p, long slot) {
    count();
    for (long i = 0; i < TILE && !p->only_time; i += ROWS)
        for (long j = 0; j < TILE; j += WIDE)
            kernel(sum + i * TILE + j, got_a[slot] + i * DEPTH, got_b[slot] + j);
}

static void step(const struct args *p, long slot) {
    came_a[0] = came_a[1] = came_b[0] = came_b[1] = 0;
    athread_ssync_array();
    give(0, slot, 0);
    for (long t = 0; t < 8; t++) {
        athread_rma_wait_value(&came_a[t % 2], t / 2 + 1);
        athread_rma_wait_value(&came_b[t % 2], t / 2 + 1);
        athread_ssync_array();
        if (t < 7) give(t + 1, slot, (t + 1) % 2);
        multiply(p, t % 2);
    }
    athread_rma_wait_value(&sent, 2);
    sent = 0;
}

/* The sums as elements of c, in the place of the sums: element i is never behind its sum. */
static void narrow(void) {
    number *to = (number *)sum;
    for (long i = 0; i < TILE * TILE; i++) to[i] = (number)sum[i];
}

static void block(const struct args *p, long row, long col) {
    enum { C = TILE * sizeof(number) };
    fetched = sent = 0;
    for (long i = 0; i < TILE * TILE && !p->only_time; i++) sum[i] = 0;
    fetch(p, row, col, 0, 0);
    for (long s = 0; s * 8 * DEPTH < p->n; s++) {
        athread_dma_wait_value(&fetched, 2 * s + 2);
        fetch(p, row, col, s + 1, (s + 1) % 2);
        step(p, s % 2);
    }
    if (!p->only_time) narrow();
    athread_dma_put_stride(p->c + row * p->n + col, sum, TILE * C, C, p->n * (long)sizeof(number) - C);
}

void matmul(void *raw) {
    struct args p = *(struct args *)raw;
    long blocks = p.n / (8 * TILE);
    for (long i = 0; i < blocks; i++)
        for (long j = 0; j < blocks; j++)
            block(&p, (i * 8 + _ROW) * TILE, (j * 8 + _COL) * TILE);
}
