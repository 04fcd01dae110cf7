/* Tiles through one CPE: copied in, worked on, copied out. `stages` has a bit for each stage that is
 * done; with all three they overlap, with two buffers between each two stages. */
#include <slave.h>

const char pipeline_params[] = "buffer u8, buffer f64, scalar i64, scalar i64, scalar i64, scalar i64, "
                               "scalar i64";

struct args {
    long grid[3];
    char *memory;
    double *cycles;
    long in_nbytes, out_nbytes, tiles, work, stages;
};

enum { MOST = 32 << 10, GET = 1, WORK = 2, PUT = 4 };
__thread_local char in[2][MOST] __attribute__((aligned(128))), out[2][MOST] __attribute__((aligned(128)));
__thread_local athread_rply_t got, put;

static void begin_get(const struct args *a, long i) {
    if (a->stages & GET && i < a->tiles)
        athread_dma_iget(in[i % 2], a->memory + i * a->in_nbytes, a->in_nbytes, &got);
}

static void tile(const struct args *a, long i) {
    if (a->stages & GET) athread_dma_wait_value(&got, i + 1);
    begin_get(a, i + 1);
    if (a->stages & PUT && i >= 2) athread_dma_wait_value(&put, i - 1);
    if (a->stages & WORK) athread_work_f64(16.0 * a->work);
    if (a->stages & PUT) {
        char *to = a->memory + a->tiles * a->in_nbytes + i * a->out_nbytes;
        athread_dma_iput(to, out[i % 2], a->out_nbytes, &put);
    }
}

void pipeline(void *raw) {
    const struct args *a = raw;
    if (_PEN) return;
    got = put = 0;
    unsigned long from = athread_stime_cycle();
    begin_get(a, 0);
    for (long i = 0; i < a->tiles; i++) tile(a, i);
    if (a->stages & PUT) athread_dma_wait_value(&put, a->tiles);
    a->cycles[0] = (double)(athread_stime_cycle() - from);
}
