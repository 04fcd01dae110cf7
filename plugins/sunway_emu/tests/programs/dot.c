/* A dot product: the host part makes two vectors, the slave cores multiply their pieces, add up over
 * the mesh by RMA, and CPE 0 puts the sum into main memory. */
#ifdef __sw_host__

#include <athread.h>
#include <stdlib.h>

struct dot { double *x, *y, *sum; long n; };
extern void SLAVE_FUN(dot)(void *);

int main(void) {
    long n = 64 * 1024;
    struct dot d = {aligned_alloc(128, n * sizeof(double)), aligned_alloc(128, n * sizeof(double)),
                    aligned_alloc(128, 128), n};
    for (long i = 0; i < n; i++) d.x[i] = i % 7, d.y[i] = i % 5;
    athread_init();
    athread_spawn(dot, &d);
    athread_join();
    athread_halt();
    printf("sum %.0f of %d threads\n", *d.sum, athread_get_max_threads());
    free(d.x), free(d.y), free(d.sum);
    return 0;
}

#else

#include <slave.h>

struct dot { double *x, *y, *sum; long n; };

enum { PIECE = 1024 };
__thread_local double x[PIECE] __attribute__((aligned(64))), y[PIECE] __attribute__((aligned(64)));
__thread_local double mine, sums[64];
__thread_local athread_rply_t sent, came;

void dot(void *raw) {
    struct dot d;
    athread_dma_get(&d, raw, sizeof d);
    athread_rply_t reply = 0;
    athread_dma_iget(x, d.x + _PEN * PIECE, sizeof x, &reply);
    athread_dma_iget(y, d.y + _PEN * PIECE, sizeof y, &reply);
    athread_dma_wait_value(&reply, 2);
    doublev8 s = {0}, a, b;
    for (int i = 0; i < PIECE; i += 8) {
        simd_load(a, x + i);
        simd_load(b, y + i);
        s = simd_vmas(a, b, s);
    }
    mine = simd_reduc_plusd(s);
    athread_ssync_array();
    athread_rma_iput(&mine, &sent, sizeof mine, 0, &sums[_PEN], &came);
    athread_rma_wait_value(&sent, 1);
    if (_PEN == 0) {
        athread_rma_wait_value(&came, 64);
        double sum = 0;
        for (int i = 0; i < 64; i++) sum += sums[i];
        athread_dma_put(d.sum, &sum, sizeof sum);
    }
}

#endif
