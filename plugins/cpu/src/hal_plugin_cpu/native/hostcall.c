/* Host calls: a thread of the host per timeline asks for the next one, runs it, and says how it ended. */
#include "runtime.h"

void hc_host_wake(hc_timeline *t) {
    __atomic_add_fetch(&t->host_seq, 1, __ATOMIC_SEQ_CST);
    hc_futex_wake(&t->host_seq, 1);
}

int64_t hc_host_call(hc_device *dev, hc_timeline *t, int nwaits, hc_point *waits, int64_t fault) {
    if (atomic_load(&dev->forked)) return HC_FORKED;
    hc_op *op = hc_op_new(HC_OP_HOST, nwaits, 0, 0);
    if (!op) return HC_NO_MEMORY;
    op->item.name = -3;
    return hc_submit(dev, op, t, nwaits, waits, fault);
}

/* Blocks until a host call of the timeline may run and gives its value; 0 when there will be none any more. */
int64_t hc_host_next(hc_timeline *t) {
    hc_device *dev = t->object.dev;
    for (;;) {
        pthread_mutex_lock(&dev->lock);
        uint32_t seen = __atomic_load_n(&t->host_seq, __ATOMIC_RELAXED);
        hc_op *op = t->host_op;
        int64_t value = op && !op->taken ? op->value : 0;
        int ended = t->ended && !t->head;
        if (value) {
            op->taken = 1;
            op->item.start_ns = hc_now();
        }
        pthread_mutex_unlock(&dev->lock);
        if (value || ended) return value;
        hc_futex_wait(&t->host_seq, seen, HC_IDLE_NS);
    }
}

void hc_host_done(hc_timeline *t, int64_t failure) {
    hc_device *dev = t->object.dev;
    pthread_mutex_lock(&dev->lock);
    hc_op *op = t->host_op;
    t->host_op = NULL;
    hc_add_span(dev, &op->item, hc_now(), dev->threads);
    hc_op_done(dev, op, failure);
    hc_timeline_retire(t);
    hc_drain(dev);
    hc_kick(dev, 0);
    pthread_mutex_unlock(&dev->lock);
}
