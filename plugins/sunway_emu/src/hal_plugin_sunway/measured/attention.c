/* o = softmax(q @ k^T) @ v for one head of float32 with 64 columns; q is scaled already. The rows of q,
 * k and v are a multiple of 1024 and at most 4096, and each CPE has a 64th of q's.
 *
 * `attention_fused` keeps scores in LDM: it corrects what it has summed when a larger score comes
 * (Milakov and Gimelshein, 2018). `attention_plain` writes the scores to main memory, makes a softmax of
 * each row, and reads them again. Both get k and v in blocks that are broadcast to all CPEs, the next
 * while they work on one. With `only_time` nothing is computed. */
#include <math.h>
#include <slave.h>
#include <string.h>

const char attention_fused_params[] =
    "buffer f32, buffer f32, buffer f32, buffer f32, buffer f32, scalar i64, scalar i64";
const char attention_plain_params[] =
    "buffer f32, buffer f32, buffer f32, buffer f32, buffer f32, scalar i64, scalar i64";

enum { WIDE = 64, BLOCK = 64, ROWS = 64, MOST = 4096, TILE = BLOCK * WIDE };
enum { EXP_FLOPS = 20 }; /* a polynomial and its scaling */

struct args {
    long grid[3];
    float *q, *k, *v, *o, *scores;
    long n, only_time;
};

#define LDM __thread_local __attribute__((aligned(64)))
LDM float q[ROWS * WIDE];
LDM float o[ROWS * WIDE];
LDM float k[2][TILE];
LDM float v[2][TILE];
LDM float s[2][ROWS * BLOCK];
LDM float line[2][MOST];
LDM float largest[ROWS];
LDM float total[ROWS];
__thread_local athread_rply_t came, got, put;

/* A product of `rows` x BLOCK x WIDE by inner kernels of 8 x 32: ten accesses to LDM for 512 operations. */
static void count_product(long rows) {
    double flops = 2.0 * (double)rows * BLOCK * WIDE;
    athread_work_f32(flops);
    athread_work_ldm(flops / 512 * 10 * 64);
}

static void count_softmax(double elements) {
    athread_work_f32(elements * (EXP_FLOPS + 3));
    athread_work_ldm(elements * 4 * 3);
}

static void times_k(const struct args *p, long rows, float *to, const float *of_k) {
    count_product(rows);
    for (long i = 0; i < rows && !p->only_time; i++)
        for (long j = 0; j < BLOCK; j++) {
            float sum = 0;
            for (long c = 0; c < WIDE; c++) sum += q[i * WIDE + c] * of_k[j * WIDE + c];
            to[i * BLOCK + j] = sum;
        }
}

static void times_v(const struct args *p, long rows, const float *from, const float *of_v) {
    count_product(rows);
    for (long i = 0; i < rows && !p->only_time; i++)
        for (long j = 0; j < BLOCK; j++)
            for (long c = 0; c < WIDE; c++) o[i * WIDE + c] += from[i * BLOCK + j] * of_v[j * WIDE + c];
}

/* Blocks of k (and of v) for all: block `b` is there when everybody has `b` replies per matrix. */
static void fetch(const struct args *p, long b, const float *matrix, float (*to)[TILE]) {
    if (_PEN == 0 && b * BLOCK < p->n) athread_dma_ibcast(to[b % 2], matrix + b * TILE, TILE * 4, &came);
}

static void rescale(const struct args *p, long rows, float *block) {
    count_softmax((double)rows * BLOCK);
    athread_work_f32((double)rows * WIDE);
    for (long i = 0; i < rows && !p->only_time; i++) {
        float most = largest[i], *row = block + i * BLOCK;
        for (long j = 0; j < BLOCK; j++) most = row[j] > most ? row[j] : most;
        float keep = expf(largest[i] - most);
        total[i] *= keep;
        for (long j = 0; j < BLOCK; j++) total[i] += row[j] = expf(row[j] - most);
        for (long c = 0; c < WIDE; c++) o[i * WIDE + c] *= keep;
        largest[i] = most;
    }
}

static long begin(const struct args *p) {
    long rows = p->n / 64;
    came = got = put = 0;
    athread_dma_get(q, p->q + _PEN * rows * WIDE, rows * WIDE * 4);
    for (long i = 0; i < rows && !p->only_time; i++) {
        largest[i] = -INFINITY;
        total[i] = 0;
        memset(o + i * WIDE, 0, WIDE * 4);
    }
    athread_ssync_array();
    return rows;
}

static void end(const struct args *p, long rows) {
    athread_dma_put(p->o + _PEN * rows * WIDE, o, rows * WIDE * 4);
}

void attention_fused(void *raw) {
    const struct args *p = raw;
    long rows = begin(p);
    fetch(p, 0, p->k, k);
    fetch(p, 0, p->v, v);
    for (long b = 0; b * BLOCK < p->n; b++) {
        athread_dma_wait_value(&came, 2 * b + 2);
        athread_ssync_array();
        fetch(p, b + 1, p->k, k);
        fetch(p, b + 1, p->v, v);
        times_k(p, rows, s[0], k[b % 2]);
        rescale(p, rows, s[0]);
        times_v(p, rows, s[0], v[b % 2]);
    }
    for (long i = 0; i < rows * WIDE && !p->only_time; i++) o[i] /= total[i / WIDE];
    end(p, rows);
}

/* Where a block of the CPE's scores lies, and the gap between its rows. */
static float *place(const struct args *p, long rows, long b) { return p->scores + _PEN * rows * p->n + b * BLOCK; }
static long gap(const struct args *p) { return (p->n - BLOCK) * 4; }

static void all_scores(const struct args *p, long rows) {
    fetch(p, 0, p->k, k);
    for (long b = 0; b * BLOCK < p->n; b++) {
        athread_dma_wait_value(&came, b + 1);
        athread_ssync_array();
        fetch(p, b + 1, p->k, k);
        if (b >= 2) athread_dma_wait_value(&put, b - 1);
        times_k(p, rows, s[b % 2], k[b % 2]);
        athread_dma_iput_stride(place(p, rows, b), s[b % 2], rows * BLOCK * 4, BLOCK * 4, gap(p), &put);
    }
    athread_dma_wait_value(&put, p->n / BLOCK);
}

static void softmax_of(const struct args *p, float *x) {
    count_softmax((double)p->n);
    if (p->only_time) return;
    float most = x[0], sum = 0;
    for (long j = 1; j < p->n; j++) most = x[j] > most ? x[j] : most;
    for (long j = 0; j < p->n; j++) sum += x[j] = expf(x[j] - most);
    for (long j = 0; j < p->n; j++) x[j] /= sum;
}

static void all_softmax(const struct args *p, long rows) {
    float *mine = place(p, rows, 0);
    got = put = 0;
    athread_dma_iget(line[0], mine, p->n * 4, &got);
    for (long i = 0; i < rows; i++) {
        athread_dma_wait_value(&got, i + 1);
        if (i >= 1) athread_dma_wait_value(&put, i);
        if (i + 1 < rows) athread_dma_iget(line[(i + 1) % 2], mine + (i + 1) * p->n, p->n * 4, &got);
        softmax_of(p, line[i % 2]);
        athread_dma_iput(mine + i * p->n, line[i % 2], p->n * 4, &put);
    }
    athread_dma_wait_value(&put, rows);
}

static void weights(const struct args *p, long rows, long b) {
    if (b * BLOCK >= p->n) return;
    athread_dma_iget_stride(s[b % 2], place(p, rows, b), rows * BLOCK * 4, BLOCK * 4, gap(p), &got);
}

static void all_products(const struct args *p, long rows) {
    came = got = 0;
    athread_ssync_array();
    fetch(p, 0, p->v, v);
    weights(p, rows, 0);
    for (long b = 0; b * BLOCK < p->n; b++) {
        athread_dma_wait_value(&came, b + 1);
        athread_dma_wait_value(&got, b + 1);
        athread_ssync_array();
        fetch(p, b + 1, p->v, v);
        weights(p, rows, b + 1);
        times_v(p, rows, s[b % 2], v[b % 2]);
    }
}

void attention_plain(void *raw) {
    const struct args *p = raw;
    long rows = begin(p);
    all_scores(p, rows);
    all_softmax(p, rows);
    all_products(p, rows);
    end(p, rows);
}
