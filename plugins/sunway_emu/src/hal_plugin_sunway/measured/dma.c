/* Blocking DMA of each of the first `active` CPEs, `reps` times between LDM and its own piece of main
 * memory: cycles per transfer. A block size above 0 makes it strided. */
#include <slave.h>

const char dma_params[] = "buffer u8, buffer f64, scalar i64, scalar i64, scalar i64, scalar i64, "
                          "scalar i64, scalar i64, scalar i64, scalar i64";

struct args {
    long grid[3];
    char *memory;
    double *cycles;
    long nbytes, active, is_put, reps, offset, bsize, stride, apart;
};

__thread_local char ldm[262144 - 1024] __attribute__((aligned(128)));

static void once(const struct args *a, char *mine) {
    if (a->is_put) {
        if (a->bsize) athread_dma_put_stride(mine, ldm, a->nbytes, a->bsize, a->stride);
        else athread_dma_put(mine, ldm, a->nbytes);
    } else {
        if (a->bsize) athread_dma_get_stride(ldm, mine, a->nbytes, a->bsize, a->stride);
        else athread_dma_get(ldm, mine, a->nbytes);
    }
}

void dma(void *raw) {
    const struct args *a = raw;
    if (_PEN >= a->active) return;
    char *mine = a->memory + _PEN * a->apart + a->offset;
    unsigned long from = athread_stime_cycle();
    for (long i = 0; i < a->reps; i++) once(a, mine);
    a->cycles[_PEN] = (double)(athread_stime_cycle() - from) / (double)a->reps;
}
