/* Timelines and those who wait for them. All under the device lock but the counters themselves. */
#include "runtime.h"

/* Numbers that the Python side gives to its two standing failures. */
#define FREED_FAILURE 1

/* 0 when one more timeline may be made. */
int hc_timeline_room(hc_device *dev, int most) {
    int error = hc_usable(dev);
    if (error) return error;
    pthread_mutex_lock(&dev->lock);
    error = dev->listed_queues < most ? 0 : HC_INVALID;
    pthread_mutex_unlock(&dev->lock);
    return error;
}

hc_timeline *hc_timeline_new(hc_device *dev, int host_driven) {
    hc_timeline *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    hc_object_init(&t->object, HC_TIMELINE, dev);
    t->host_driven = host_driven;
    hc_ref(t); /* of the device's list, until freed */
    pthread_mutex_lock(&dev->lock);
    t->id = ++dev->ntimelines;
    dev->listed_queues += !host_driven;
    t->next = dev->timelines;
    if (t->next) t->next->link = &t->next;
    t->link = &dev->timelines;
    dev->timelines = t;
    pthread_mutex_unlock(&dev->lock);
    return t;
}

int64_t hc_value(hc_timeline *t) { return atomic_load(&t->value); }
int hc_failed(hc_timeline *t) { return atomic_load(&t->failure) != 0; }

static void unlink_waiter(hc_waiter *w) {
    if (!w->link) return;
    *w->link = w->next;
    if (w->next) w->next->link = w->link;
    w->link = NULL;
}

static void link_waiter(hc_timeline *t, hc_waiter *w) {
    w->next = t->waiters;
    if (w->next) w->next->link = &w->next;
    w->link = &t->waiters;
    t->waiters = w;
}

void hc_unlink_waits(hc_op *op) {
    for (int i = 0; i < op->nwaits; i++) unlink_waiter(&op->waits[i]);
    op->nwaits = 0;
}

static void wake_sleeper(hc_device *dev, hc_sleeper *s, int64_t failure) {
    if (failure && !s->failure) s->failure = failure;
    if (!failure) s->remaining--;
    if (!failure && s->all && s->remaining > 0) return;
    __atomic_store_n(&s->woken, 1, __ATOMIC_SEQ_CST);
    dev->woken = 1;
    hc_futex_wake(&s->woken, 1);
}

static void wake_op(hc_device *dev, hc_op *op, int64_t failure) {
    op->pending--;
    if (failure && !op->failure) op->failure = failure;
    if (op == op->timeline->head && (op->failure || !op->pending)) hc_todo(dev, op);
}

/* After the timeline advanced or failed: hands the news to everyone whom it concerns. */
void hc_wake_waiters(hc_device *dev, hc_timeline *t) {
    int64_t value = atomic_load(&t->value), failure = atomic_load(&t->failure);
    hc_waiter *next;
    for (hc_waiter *w = t->waiters; w; w = next) {
        next = w->next;
        int reached = w->value <= value;
        if (!reached && !failure) continue;
        unlink_waiter(w);
        if (w->op) wake_op(dev, w->op, reached ? 0 : failure);
        else wake_sleeper(dev, w->sleeper, reached ? 0 : failure);
    }
}

/* Makes the operation wait for those points that are not reached yet. */
int hc_link_waits(hc_device *dev, hc_op *op, int nwaits, hc_point *waits) {
    for (int i = 0; i < nwaits; i++)
        if (hc_check(dev, waits[i].timeline)) return HC_STALE;
    for (int i = 0; i < nwaits; i++) {
        hc_timeline *t = waits[i].timeline;
        if (atomic_load(&t->value) >= waits[i].value) continue;
        if (atomic_load(&t->failure)) {
            if (!op->failure) op->failure = atomic_load(&t->failure);
            continue;
        }
        hc_waiter *w = &op->waits[op->nwaits++];
        *w = (hc_waiter){.value = waits[i].value, .op = op};
        link_waiter(t, w);
        op->pending++;
    }
    return 0;
}

int hc_signal(hc_device *dev, hc_timeline *t, int64_t value, int64_t failure) {
    if (atomic_load(&dev->forked)) return HC_FORKED;
    if (hc_check(dev, t)) return HC_STALE;
    if (!t->host_driven) return HC_INVALID;
    pthread_mutex_lock(&dev->lock);
    int error = 0;
    if (atomic_load(&t->failure)) {
        ;
    } else if (failure) {
        hc_fail_timeline(dev, t, failure);
    } else if (value <= atomic_load(&t->value)) {
        error = HC_INVALID;
    } else {
        atomic_store(&t->value, value);
        hc_wake_waiters(dev, t);
    }
    hc_drain(dev);
    hc_kick(dev, 0);
    pthread_mutex_unlock(&dev->lock);
    return error;
}

/* Takes a freed timeline off the device's list once it owes nothing. */
void hc_timeline_retire(hc_timeline *t) {
    if (t->ended && !t->head && !t->host_op) hc_timeline_unlist(t);
}

void hc_timeline_unlist(hc_timeline *t) {
    if (!t->link) return;
    *t->link = t->next;
    if (t->next) t->next->link = t->link;
    t->link = NULL;
    t->object.dev->listed_queues -= !t->host_driven;
    hc_unref(t);
}

/* Nobody can signal a freed host-driven timeline any more, so what waits for it fails instead of hanging. */
void hc_timeline_freed(hc_device *dev, hc_timeline *t) {
    pthread_mutex_lock(&dev->lock);
    if (t->host_driven) hc_fail_timeline(dev, t, FREED_FAILURE);
    hc_drain(dev);
    hc_kick(dev, 0);
    t->ended = 1;
    hc_host_wake(t);
    hc_timeline_retire(t);
    pthread_mutex_unlock(&dev->lock);
}

/* Looks at the points once: 1 all (any) reached, -1 failed, 0 not yet. */
static int look(int npoints, hc_point *points, int wait_all, int64_t *failure) {
    int reached = 0, failed = 0;
    for (int i = 0; i < npoints; i++) {
        int64_t cause = atomic_load(&points[i].timeline->failure); /* first: after it the value is final */
        if (atomic_load(&points[i].timeline->value) >= points[i].value) reached++;
        else if (cause && !failed++) *failure = cause;
    }
    if (wait_all ? reached == npoints : reached > 0) return 1;
    return failed ? -1 : 0;
}

/* Waits at most slice_ns. A wait of several slices checks its handles at the first only: a reset in between
 * fails its points, which is what it shall report. Gives 1 reached, 0 not yet (also after a signal), HC_FAILED with *failure, or an error. */
int hc_wait(hc_device *dev, int npoints, hc_point *points, int wait_all, int first, int64_t slice_ns,
            int64_t *failure) {
    if (atomic_load(&dev->forked)) return HC_FORKED;
    for (int i = 0; i < npoints && first; i++)
        if (hc_check(dev, points[i].timeline)) return HC_STALE;
    int seen = look(npoints, points, wait_all, failure);
    if (seen || slice_ns <= 0) return seen < 0 ? HC_FAILED : seen;
    hc_waiter *waiters = calloc(npoints, sizeof *waiters);
    if (!waiters) return HC_NO_MEMORY;
    hc_sleeper sleeper = {.all = wait_all};
    pthread_mutex_lock(&dev->lock);
    seen = look(npoints, points, wait_all, failure);
    for (int i = 0; i < npoints && !seen; i++) {
        if (atomic_load(&points[i].timeline->value) >= points[i].value) continue;
        waiters[i] = (hc_waiter){.value = points[i].value, .sleeper = &sleeper};
        link_waiter(points[i].timeline, &waiters[i]);
        sleeper.remaining++;
    }
    pthread_mutex_unlock(&dev->lock);
    if (!seen) hc_futex_wait(&sleeper.woken, 0, slice_ns);
    pthread_mutex_lock(&dev->lock);
    for (int i = 0; i < npoints; i++) unlink_waiter(&waiters[i]);
    seen = look(npoints, points, wait_all, failure);
    pthread_mutex_unlock(&dev->lock);
    free(waiters);
    return seen < 0 ? HC_FAILED : seen;
}
