/* One collective call among devices of this process. The members arrive as operations of their own timelines, and
 * the last one to arrive runs the call on its device's workers, for all. */
#include "runtime.h"
#include "call.h"

static int64_t *copied(const int64_t *counts, int size) {
    int64_t *copy = malloc((size_t)size * size * sizeof *copy);
    if (copy) memcpy(copy, counts, (size_t)size * size * sizeof *copy);
    return copy;
}

/* `counts` are size * size numbers of an ALL_TO_ALL_V, or NULL. NULL without memory. */
hc_call *hc_call_new(int size, int kind, int dtype, int reduce, int root, int64_t count, const int64_t *counts) {
    hc_call *c = calloc(1, sizeof *c + size * sizeof(hc_member));
    if (!c) return NULL;
    atomic_init(&c->refs, 1);
    pthread_mutex_init(&c->lock, NULL);
    c->shape = (hc_shape){.size = size, .kind = kind, .dtype = dtype, .reduce = reduce, .root = root, .count = count};
    if (counts && !(c->counts = copied(counts, size))) {
        hc_call_release(c);
        return NULL;
    }
    return c;
}

void hc_call_release(hc_call *c) {
    if (atomic_fetch_sub(&c->refs, 1) != 1) return;
    for (int i = 0; i < c->shape.size; i++) free(c->members[i].scratch);
    pthread_mutex_destroy(&c->lock);
    free(c->counts);
    free(c);
}

/* The operation gives its part in the call up, done or not. */
void hc_call_forget(hc_op *op) {
    hc_call *c = op->call;
    hc_member *m = &c->members[op->rank];
    if (atomic_load(&m->stage) != HC_MOVING) atomic_store(&m->stage, HC_GONE);
    atomic_store(&m->done, 1);
    hc_call_release(c);
    op->call = NULL;
}

static void move_on(hc_call *c) {
    c->executing = 1;
    for (int i = 0; i < c->shape.size; i++) atomic_store(&c->members[i].stage, HC_MOVING);
}

static int64_t arrive(hc_call *c, hc_device *dev, hc_op *op, int *last) {
    hc_member *m = &c->members[op->rank];
    pthread_mutex_lock(&c->lock);
    if (!m->failure) {
        m->dev = dev;
        m->op = op;
        atomic_store(&m->arrived_ns, hc_now());
        atomic_store(&m->stage, HC_WAITING);
        *last = ++c->arrived == c->shape.size;
        if (*last) move_on(c);
    }
    pthread_mutex_unlock(&c->lock);
    return m->failure;
}

/* Under the device lock. */
void hc_call_arrive(hc_device *dev, hc_op *op) {
    int last = 0;
    int64_t failure = arrive(op->call, dev, op, &last);
    if (failure) {
        hc_op_done(dev, op, failure);
        return;
    }
    if (!last) return;
    op->active = 1;
    dev->active++;
    op->item.run = HC_RUN_CALL;
    op->item.total = hc_call_pieces(op->call);
    hc_ready(dev, &op->item);
}

/* Takes an arrived operation out of the call; 0 when the call runs already, so that it must stay. */
int hc_call_leave(hc_op *op) {
    hc_call *c = op->call;
    hc_member *m = &c->members[op->rank];
    pthread_mutex_lock(&c->lock);
    int left = !c->executing;
    if (left && m->op) {
        m->op = NULL;
        m->failure = m->failure ? m->failure : 1;
        atomic_store(&m->stage, HC_GONE);
        c->arrived--;
    }
    pthread_mutex_unlock(&c->lock);
    return left;
}

/* The call ran on `dev`: completes every member's operation, one device lock at a time. */
void hc_call_finish(hc_call *c, hc_device *dev, int lane) {
    int64_t end_ns = hc_now(), start_ns = 0;
    atomic_fetch_add(&c->refs, 1);
    for (int i = 0; i < c->shape.size; i++)
        if (c->members[i].dev == dev && c->members[i].op->active) start_ns = c->members[i].op->item.start_ns;
    for (int i = 0; i < c->shape.size; i++) {
        hc_member *m = &c->members[i];
        hc_device *member_dev = m->dev;
        atomic_fetch_add(&member_dev->refs, 1);
        pthread_mutex_lock(&member_dev->lock);
        m->op->item.start_ns = start_ns;
        hc_add_span(member_dev, &m->op->item, end_ns, lane);
        hc_op_done(member_dev, m->op, 0);
        hc_drain(member_dev);
        hc_kick(member_dev, 0);
        pthread_mutex_unlock(&member_dev->lock);
        hc_release_device(member_dev);
    }
    hc_call_release(c);
}

/* Room for a copy of the source where an ALL_TO_ALL_V would overwrite it before it is sent. */
static int save_room(hc_call *c, int rank, hc_buffer *dst, hc_buffer *src) {
    hc_member *m = &c->members[rank];
    if (c->shape.kind != ALL_TO_ALL_V || dst != src) return 0;
    int64_t n = hc_sent_before(&c->shape, c->counts, rank, c->shape.size);
    m->scratch = malloc(n * hc_nbytes_of(c->shape.dtype) + 1);
    return m->scratch ? 0 : HC_NO_MEMORY;
}

static int64_t submit(hc_device *dev, hc_op *op, hc_buffer *dst, int64_t dst_offset, hc_buffer *src,
                      int64_t src_offset, hc_timeline *t, int nwaits, hc_point *waits, int64_t fault) {
    hc_member *m = &op->call->members[op->rank];
    int error = hc_op_use(dev, op, dst);
    if (!error) error = hc_op_use(dev, op, src);
    if (!error) error = save_room(op->call, op->rank, dst, src);
    if (error) {
        hc_op_discard(op);
        return error;
    }
    m->dst = dst->data + dst_offset;
    m->src = src->data + src_offset;
    return hc_submit(dev, op, t, nwaits, waits, fault);
}

int64_t hc_collective(hc_device *dev, hc_call *call, int rank, hc_buffer *dst, int64_t dst_offset, hc_buffer *src,
                      int64_t src_offset, hc_timeline *timeline, int nwaits, hc_point *waits, int64_t fault) {
    if (atomic_load(&dev->forked)) return HC_FORKED;
    hc_op *op = hc_op_new(HC_OP_CALL, nwaits, 2, 0);
    if (!op) return HC_NO_MEMORY;
    atomic_fetch_add(&call->refs, 1);
    op->call = call;
    op->rank = rank;
    op->item.name = -4;
    return submit(dev, op, dst, dst_offset, src, src_offset, timeline, nwaits, waits, fault);
}

/* Under the device lock: the member's operation, wherever it is queued. */
static hc_op *find(hc_device *dev, hc_call *call, int rank) {
    for (hc_timeline *t = dev->timelines; t; t = t->next)
        for (hc_op *op = t->head; op; op = op->next)
            if (op->call == call && op->rank == rank) return op;
    return NULL;
}

/* Fails the call on this member alone: at once if it is its timeline's turn, else when it comes. What moves
 * already is done in a moment and stays. */
void hc_call_fail(hc_device *dev, hc_call *call, int rank, int64_t failure) {
    if (atomic_load(&dev->forked)) return;
    pthread_mutex_lock(&dev->lock);
    pthread_mutex_lock(&call->lock);
    int executing = call->executing;
    if (!executing) call->members[rank].failure = failure;
    pthread_mutex_unlock(&call->lock);
    hc_op *op = executing ? NULL : find(dev, call, rank);
    if (op && !op->failure) op->failure = failure;
    if (op && op == op->timeline->head && !op->in_todo) hc_fail_timeline(dev, op->timeline, failure);
    hc_drain(dev);
    hc_kick(dev, 0);
    pthread_mutex_unlock(&dev->lock);
}

int64_t hc_call_arrived_ns(hc_call *call, int rank) { return atomic_load(&call->members[rank].arrived_ns); }
int hc_call_stage(hc_call *call, int rank) { return atomic_load(&call->members[rank].stage); }
int hc_call_done(hc_call *call, int rank) { return atomic_load(&call->members[rank].done); }
