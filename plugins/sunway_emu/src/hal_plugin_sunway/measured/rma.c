/* Messages from CPE `from` to CPE `to`: kind 0 goes to and fro and gives half a round; kind 1 puts with
 * `window` messages under way and gives the cycles of one. */
#include <slave.h>

const char rma_params[] = "buffer f64, scalar i64, scalar i64, scalar i64, scalar i64, scalar i64, scalar i64";

struct args {
    long grid[3];
    double *cycles;
    long nbytes, from, to, reps, kind, window;
};

enum { MOST = 120 << 10 };
__thread_local char out[MOST] __attribute__((aligned(64))), in[MOST] __attribute__((aligned(64)));
__thread_local athread_rply_t sent, came;

static void to_and_fro(const struct args *a, int first, int other) {
    for (long i = 1; i <= a->reps; i++) {
        if (!first) athread_rma_wait_value(&came, i);
        athread_rma_iput(out, &sent, a->nbytes, other, in, &came);
        if (first) athread_rma_wait_value(&came, i);
    }
    athread_rma_wait_value(&sent, a->reps);
}

static void stream(const struct args *a) {
    for (long i = 1; i <= a->reps; i++) {
        athread_rma_iput(out, &sent, a->nbytes, a->to, in, &came);
        if (i >= a->window) athread_rma_wait_value(&sent, i - a->window + 1);
    }
    athread_rma_wait_value(&sent, a->reps);
}

void rma(void *raw) {
    const struct args *a = raw;
    sent = came = 0;
    athread_ssync_array();
    unsigned long from = athread_stime_cycle();
    if (a->kind == 0 && (_PEN == a->from || _PEN == a->to))
        to_and_fro(a, _PEN == a->from, _PEN == a->from ? a->to : a->from);
    if (a->kind == 1 && _PEN == a->from) stream(a);
    if (_PEN == a->from)
        a->cycles[0] = (double)(athread_stime_cycle() - from) / (double)a->reps / (a->kind ? 1 : 2);
    athread_ssync_array();
}
