/* Opening, closing, losing and resetting a device. */
#include "runtime.h"

static void init_locks(hc_device *dev) {
    pthread_mutexattr_t m;
    pthread_mutexattr_init(&m);
    pthread_mutexattr_settype(&m, PTHREAD_MUTEX_ADAPTIVE_NP);
    pthread_mutex_init(&dev->lock, &m);
    pthread_mutex_init(&dev->memory_lock, &m);
    pthread_mutexattr_destroy(&m);
    hc_cond_init(&dev->idle);
}

/* NULL when threads or memory cannot be had. */
hc_device *hc_open(int threads, int index, int64_t capacity, int64_t progress_ns) {
    hc_device *dev = calloc(1, sizeof *dev);
    if (!dev) return NULL;
    atomic_init(&dev->refs, 1);
    dev->index = index;
    dev->threads = threads;
    dev->capacity = capacity;
    dev->progress_ns = progress_ns;
    dev->todo_end = &dev->todo;
    dev->ready_end = &dev->ready;
    init_locks(dev);
    dev->spans = malloc(HC_SPANS * sizeof *dev->spans);
    if (dev->spans && !hc_start_workers(dev) && !hc_start_watch(dev)) return dev;
    hc_stop_workers(dev);
    hc_release_device(dev);
    return NULL;
}

/* Waits at most slice_ns until no operation runs or can run; 1 when that is so. */
int hc_quiesce(hc_device *dev, int64_t slice_ns) {
    int64_t until_ns = hc_now() + slice_ns, left_ns;
    if (atomic_load(&dev->forked)) return 1;
    pthread_mutex_lock(&dev->lock);
    while (dev->active && (left_ns = until_ns - hc_now()) > 0) hc_cond_wait(&dev->idle, &dev->lock, left_ns);
    int quiet = dev->active == 0;
    pthread_mutex_unlock(&dev->lock);
    return quiet;
}

/* From now on every call that would make a handle or submit is refused as stale. */
void hc_refuse(hc_device *dev) {
    if (atomic_load(&dev->forked)) return;
    pthread_mutex_lock(&dev->lock);
    atomic_store(&dev->refusing, 1);
    pthread_mutex_unlock(&dev->lock);
}

static void end_timelines(hc_device *dev) {
    pthread_mutex_lock(&dev->lock);
    while (dev->timelines) {
        hc_timeline *t = dev->timelines;
        t->ended = 1;
        hc_host_wake(t);
        hc_timeline_unlist(t);
    }
    pthread_mutex_unlock(&dev->lock);
}

/* Under the lock, until nothing runs. The watch takes what hangs off the account, so this ends. */
static void settle(hc_device *dev) {
    while (dev->active || hc_workers_busy(dev)) hc_cond_wait(&dev->idle, &dev->lock, 1000000);
}

static void fail_everything(hc_device *dev, int64_t failure) {
    pthread_mutex_lock(&dev->lock);
    hc_fail_all(dev, failure);
    hc_drain(dev);
    settle(dev);
    pthread_mutex_unlock(&dev->lock);
}

/* Ends the device: what is still queued fails with `failure`, what runs is waited for. Idempotent. */
void hc_shut(hc_device *dev, int64_t failure) {
    if (atomic_load(&dev->forked) || atomic_load(&dev->state) == HC_STATE_CLOSED) return;
    hc_refuse(dev);
    fail_everything(dev, failure);
    atomic_store(&dev->state, HC_STATE_CLOSED);
    hc_stop_watch(dev);
    hc_stop_workers(dev);
    end_timelines(dev);
    hc_free_objects(dev);
}

int hc_lose(hc_device *dev, int64_t failure, int reset_required) {
    if (atomic_load(&dev->forked)) return HC_FORKED;
    pthread_mutex_lock(&dev->lock);
    hc_declare_lost(dev, failure, reset_required);
    hc_drain(dev);
    pthread_mutex_unlock(&dev->lock);
    return 0;
}

/* The caller has lost the device before; gives the new epoch, or HC_LOST when the system gives no threads. */
int64_t hc_reset(hc_device *dev) {
    if (atomic_load(&dev->forked)) return HC_FORKED;
    if (atomic_load(&dev->state) == HC_STATE_CLOSED) return HC_STALE;
    hc_refuse(dev);
    fail_everything(dev, atomic_load(&dev->cause));
    int64_t epoch = hc_next_epoch(dev);
    end_timelines(dev);
    hc_free_objects(dev);
    pthread_mutex_lock(&dev->lock);
    int missing = hc_refill_workers(dev);
    if (!missing) {
        atomic_store(&dev->hanging, 0);
        atomic_store(&dev->cause, 0);
        atomic_store(&dev->state, HC_OK);
    }
    atomic_store(&dev->refusing, 0);
    pthread_mutex_unlock(&dev->lock);
    return missing ? HC_LOST : epoch;
}

int hc_health(hc_device *dev, int64_t *failure) {
    *failure = atomic_load(&dev->cause);
    return atomic_load(&dev->state);
}

int hc_hanging(hc_device *dev) { return atomic_load(&dev->hanging); }

/* Threads that still run what was given up, with its code and its memory. */
int hc_abandoned(hc_device *dev) { return atomic_load(&dev->abandoned); }

/* Whether anything runs that may use the memory of operations, failed ones included. */
int hc_running(hc_device *dev) {
    if (atomic_load(&dev->forked)) return 0;
    pthread_mutex_lock(&dev->lock);
    int running = dev->active || hc_abandoned(dev) || hc_workers_busy(dev);
    pthread_mutex_unlock(&dev->lock);
    return running;
}
int64_t hc_epoch(hc_device *dev) { return atomic_load(&dev->epoch); }

/* In the child of a fork: the workers are gone and the locks may be held for ever, so nothing is touched again. */
void hc_mark_forked(hc_device *dev) { atomic_store(&dev->forked, 1); }
