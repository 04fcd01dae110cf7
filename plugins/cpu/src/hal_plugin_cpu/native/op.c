/* Operations: submitted, ordered on their timeline, begun when nothing is owed to them, done or failed.
 *
 * Everything here runs under the device lock and never recurses: what a completion makes possible goes to the
 * device's to-do list, which `hc_drain` empties before the lock is given back. */
#include "runtime.h"

hc_op *hc_op_new(enum hc_kind kind, int nwaits, int nobjects, int nslots) {
    size_t nbytes = sizeof(hc_op) + nwaits * sizeof(hc_waiter) + nobjects * sizeof(hc_object *) +
                    nslots * sizeof(uint64_t);
    hc_op *op = malloc(nbytes);
    if (!op) return NULL;
    memset(op, 0, sizeof *op);
    op->kind = kind;
    op->waits = (hc_waiter *)(op + 1);
    op->objects = (hc_object **)(op->waits + nwaits);
    op->slots = (uint64_t *)(op->objects + nobjects);
    op->item.op = op;
    op->limit = INT32_MAX;
    return op;
}

int hc_op_use(hc_device *dev, hc_op *op, void *object) {
    int error = hc_acquire(dev, object);
    if (!error) op->objects[op->nobjects++] = object;
    return error;
}

/* Gives back everything that the operation holds. Needs no lock if the operation is on no timeline. */
static void release(hc_op *op) {
    if (op->state) hc_graph_recycle(op);
    for (int i = 0; i < op->nobjects; i++) hc_drop(op->objects[i]);
    op->nobjects = 0;
    if (op->call) hc_call_forget(op);
}

void hc_op_discard(hc_op *op) {
    release(op);
    if (op->timeline) hc_unref(op->timeline);
    free(op);
}

void hc_todo(hc_device *dev, hc_op *op) {
    if (op->in_todo) return;
    op->in_todo = 1;
    op->todo_next = NULL;
    *dev->todo_end = op;
    dev->todo_end = &op->todo_next;
}

static void deactivate(hc_device *dev, hc_op *op) {
    if (!op->active) return;
    op->active = 0;
    if (--dev->active == 0) pthread_cond_broadcast(&dev->idle);
}

/* True when a worker or a host thread still uses the operation, so that it must outlive its failed timeline. */
static int in_foreign_hands(hc_op *op) {
    if (op->in_todo) return 1;
    if (op->kind == HC_OP_CALL && op->started && !op->hung) return !hc_call_leave(op);
    return op->active;
}

static void fail_op(hc_op *op) {
    hc_unlink_waits(op);
    op->next = NULL;
    if (in_foreign_hands(op)) op->detached = 1;
    else hc_op_discard(op);
}

void hc_fail_timeline(hc_device *dev, hc_timeline *t, int64_t failure) {
    if (atomic_load(&t->failure)) return;
    hc_ref(t);
    hc_op *op = t->head;
    t->head = t->tail = NULL;
    if (t->host_op && !t->host_op->taken) {
        deactivate(dev, t->host_op);
        t->host_op = NULL;
    }
    while (op) {
        hc_op *next = op->next;
        fail_op(op);
        op = next;
    }
    atomic_store(&t->failure, failure);
    hc_wake_waiters(dev, t);
    hc_timeline_retire(t);
    hc_unref(t);
}

void hc_fail_all(hc_device *dev, int64_t failure) {
    hc_timeline *next;
    for (hc_timeline *t = dev->timelines; t; t = next) {
        next = t->next;
        hc_fail_timeline(dev, t, failure);
    }
    hc_cancel_detached(dev);
}

void hc_declare_lost(hc_device *dev, int64_t failure, int reset_required) {
    if (atomic_load(&dev->state) != HC_OK) return;
    atomic_store(&dev->cause, failure);
    atomic_store(&dev->state, reset_required ? HC_STATE_RESET : HC_STATE_LOST);
    hc_fail_all(dev, failure);
}

/* The operation did its work (or failed at it). Its resources are back before its point is seen as reached. */
void hc_op_done(hc_device *dev, hc_op *op, int64_t failure) {
    hc_timeline *t = op->timeline;
    deactivate(dev, op);
    if (op->detached) {
        hc_op_discard(op);
        return;
    }
    if (failure) {
        op->started = 0;
        hc_fail_timeline(dev, t, failure);
        return;
    }
    t->head = op->next;
    if (!t->head) t->tail = NULL;
    else hc_todo(dev, t->head);
    release(op);
    atomic_store(&t->value, op->value);
    hc_wake_waiters(dev, t);
    hc_timeline_retire(t);
    hc_op_discard(op);
}

/* The device's health names the first hang. */
void hc_note_hang(hc_device *dev, int64_t failure) {
    if (!atomic_load(&dev->hanging) && atomic_load(&dev->state) == HC_OK) atomic_store(&dev->cause, failure);
}

/* The operation comes on no more: its point fails, and nobody waits for it. */
void hc_give_up(hc_device *dev, hc_op *op, int64_t failure) {
    if (!op->detached) hc_fail_timeline(dev, op->timeline, failure);
    deactivate(dev, op);
}

static void hang(hc_device *dev, hc_op *op) {
    op->hung = op->fault & 7;
    hc_note_hang(dev, op->fault >> 3);
    atomic_fetch_add(&dev->hanging, 1);
    dev->hung = 1;
    if (dev->watch_idle) hc_wake_watch(dev);
}

/* Leaves the second half of the work out; true when that is all of it. */
static int halve(hc_op *op) {
    hc_item *item = &op->item;
    item->nbytes /= 2;
    item->total = item->run == HC_RUN_LAUNCH ? item->total / 2 : hc_pieces(item->nbytes);
    if (op->kind == HC_OP_GRAPH) op->limit = (op->graph->ncommands + 1) / 2;
    return op->kind == HC_OP_HOST || op->kind == HC_OP_CALL;
}

/* Carries out an injected fault; true when the operation does not run. */
static int strike(hc_device *dev, hc_op *op) {
    int64_t failure = op->fault >> 3;
    switch (op->fault & 7) {
    case HC_FAULT_HANG:
    case HC_FAULT_HANG_LOSE:
    case HC_FAULT_HANG_RESET: hang(dev, op); return 1;
    case HC_FAULT_LOSE: hc_declare_lost(dev, failure, 0); return 1;
    case HC_FAULT_RESET: hc_declare_lost(dev, failure, 1); return 1;
    case HC_FAULT_PARTIAL: if (!halve(op)) return 0;
    }
    hc_op_done(dev, op, failure);
    return 1;
}

static void begin_item(hc_device *dev, hc_op *op) {
    if (op->item.total > 0) hc_ready(dev, &op->item);
    else hc_op_done(dev, op, op->fault >> 3);
}

static void begin_host_call(hc_op *op) {
    op->timeline->host_op = op;
    hc_host_wake(op->timeline);
}

static void begin(hc_device *dev, hc_op *op) {
    if (op->started || op != op->timeline->head) return;
    if (op->failure) {
        hc_fail_timeline(dev, op->timeline, op->failure);
        return;
    }
    if (op->pending) return;
    op->started = 1;
    if (op->fault && strike(dev, op)) return;
    if (op->kind != HC_OP_CALL) {
        op->active = 1;
        dev->active++;
        if (dev->watch_idle) hc_wake_watch(dev);
    }
    switch (op->kind) { /* which may end the operation, and free it, at once: it is not looked at again */
    case HC_OP_ITEM: begin_item(dev, op); break;
    case HC_OP_GRAPH: hc_graph_begin(dev, op); break;
    case HC_OP_HOST: begin_host_call(op); break;
    case HC_OP_CALL: hc_call_arrive(dev, op); break;
    }
}

void hc_drain(hc_device *dev) {
    while (dev->todo) {
        hc_op *op = dev->todo;
        dev->todo = op->todo_next;
        if (!dev->todo) dev->todo_end = &dev->todo;
        op->in_todo = 0;
        if (op->detached) hc_op_discard(op);
        else begin(dev, op);
    }
}

int hc_usable(hc_device *dev) {
    if (atomic_load(&dev->forked)) return HC_FORKED;
    int state = atomic_load(&dev->state);
    if (state == HC_STATE_CLOSED || atomic_load(&dev->refusing)) return HC_STALE;
    return state == HC_OK ? 0 : HC_LOST;
}

static int enqueue(hc_device *dev, hc_op *op, hc_timeline *t, int nwaits, hc_point *waits) {
    int error = hc_usable(dev);
    if (!error) error = hc_link_waits(dev, op, nwaits, waits);
    if (error) return error;
    hc_ref(t);
    op->timeline = t;
    op->value = ++t->submitted;
    if (t->tail) t->tail->next = op;
    else t->head = op;
    t->tail = op;
    return 0;
}

/* Small copies and fills run here and now: waking a worker costs more than they do. */
static int run_inline(hc_op *op) {
    int plain = op->kind == HC_OP_ITEM && op->item.run != HC_RUN_LAUNCH && !op->fault;
    return plain && op->item.total == 1 && op->item.nbytes <= 65536 && !op->pending && !op->failure;
}

static void submit_inline(hc_device *dev, hc_op *op) {
    op->started = op->active = 1;
    dev->active++;
    pthread_mutex_unlock(&dev->lock);
    op->item.start_ns = hc_now();
    hc_run_item(&op->item, 0, 1);
    int64_t end_ns = hc_now();
    pthread_mutex_lock(&dev->lock);
    hc_add_span(dev, &op->item, end_ns, dev->threads);
    hc_op_done(dev, op, 0);
}

/* Puts an operation on its timeline and gives its value; the operation is discarded on an error. */
int64_t hc_submit(hc_device *dev, hc_op *op, hc_timeline *t, int nwaits, hc_point *waits, int64_t fault) {
    int64_t result = hc_check(dev, t);
    if (!result && t->host_driven) result = HC_INVALID;
    op->fault = fault;
    if (!result) {
        pthread_mutex_lock(&dev->lock);
        result = enqueue(dev, op, t, nwaits, waits);
        if (!result) {
            result = op->value;
            if (atomic_load(&t->failure)) { /* a failed timeline keeps failing with its first cause */
                t->head = t->tail = NULL;
                fail_op(op);
            } else if (t->head == op && run_inline(op)) {
                submit_inline(dev, op);
            } else if (t->head == op) {
                hc_todo(dev, op);
            }
            hc_drain(dev);
            hc_kick(dev, 0);
            pthread_mutex_unlock(&dev->lock);
            return result;
        }
        pthread_mutex_unlock(&dev->lock);
    }
    hc_op_discard(op);
    return result;
}
