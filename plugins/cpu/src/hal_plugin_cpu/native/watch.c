/* The watch: looks at what runs, a few times in the time that an operation may take without coming on. What did not
 * come on while one of its workers had the processor for that time hangs: its point fails, and the workers on it are left
 * to it. A kernel that hangs takes all the processor time it can get; one whose workers wait for a processor, on a busy
 * machine or in a stopped process, does not hang. What takes none is given up after so many looks that no machine is so
 * busy; to count looks and not time forgives a process that was stopped meanwhile. */
#include "runtime.h"

#define LOOKS 4
#define PATIENCE 100 /* times the limit */
#define STACK_NBYTES (256 << 10)

/* Changes with every piece that a worker takes: then it has done the one before. Of a grid of 2^62 it wraps. */
static uint64_t progress(const hc_slot *s) {
    uint64_t taken = 0;
    for (int i = 0; i < s->nranges; i++)
        taken += (uint64_t)atomic_load_explicit(&s->ranges[i].next, memory_order_relaxed);
    return taken * 1009 + (uint64_t)s->joined + s->runs * 1000003;
}

/* Processor time of a worker so far. */
static int64_t spent_ns(const hc_worker *w) {
    clockid_t clock;
    struct timespec t;
    if (pthread_getcpuclockid(w->thread, &clock) || clock_gettime(clock, &t)) return 0;
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* The most processor time that a worker on the slot took since the slot came on. */
static int64_t most_ns(hc_device *dev, const hc_slot *s, int came_on) {
    int64_t most = 0;
    for (int i = 0; i < dev->threads; i++) {
        hc_worker *w = dev->workers[i];
        if (!w || w->slot != s) continue;
        int64_t now = spent_ns(w);
        if (came_on) w->spent_ns = now;
        if (now - w->spent_ns > most) most = now - w->spent_ns;
    }
    return most;
}

static int64_t failure_of(const hc_item *item) { return HC_HANGS + item->name - HC_FIRST_NAME; }

static void look_at_slot(hc_device *dev, hc_slot *s) {
    uint64_t now = progress(s);
    s->looked = dev->look;
    s->quiet = now == s->seen ? s->quiet + 1 : 0;
    s->seen = now;
    int hangs = most_ns(dev, s, !s->quiet) >= dev->progress_ns || s->quiet >= LOOKS * PATIENCE;
    if (!hangs || s->item->run == HC_RUN_CALL) return;
    hc_op *op = s->item->op;
    int64_t failure = failure_of(s->item);
    hc_note_hang(dev, failure);
    hc_cancel(s);
    if (dev->open == s) dev->open = NULL;
    hc_abandon(dev, s);
    hc_give_up(dev, op, failure);
    if (hc_refill_workers(dev)) hc_declare_lost(dev, failure, 0);
}

/* Operations that hang because a fault says so: 1 when there was one, -1 when the device was lost over it, 0 otherwise. */
static int look_at_timeline(hc_device *dev, hc_timeline *t) {
    hc_op *op = t->head;
    if (!op || !op->hung) return 0;
    if (op->quiet++ < LOOKS) return 1;
    if (op->hung == HC_FAULT_HANG) {
        hc_fail_timeline(dev, t, op->fault >> 3);
    } else {
        hc_declare_lost(dev, op->fault >> 3, op->hung == HC_FAULT_HANG_RESET);
        return -1;
    }
    return 1;
}

static int look(hc_device *dev) {
    int found = 0, seen = 0;
    hc_timeline *next;
    dev->look++;
    for (int i = 0; i < dev->threads && dev->workers; i++) {
        hc_slot *s = dev->workers[i] ? dev->workers[i]->slot : NULL;
        if (s && s->looked != dev->look) look_at_slot(dev, s);
    }
    for (hc_timeline *t = dev->timelines; t && seen >= 0; t = next) {
        next = t->next;
        seen = look_at_timeline(dev, t);
        found |= seen;
    }
    hc_drain(dev);
    hc_kick(dev, 0);
    return found;
}

static void nap(hc_device *dev, int64_t nap_ns) {
    int64_t until_ns = hc_now() + nap_ns, left_ns;
    while ((left_ns = until_ns - hc_now()) > 0) {
        uint32_t seen = __atomic_load_n(&dev->watch_seq, __ATOMIC_ACQUIRE);
        if (__atomic_load_n(&dev->watch_stop, __ATOMIC_ACQUIRE)) return;
        hc_futex_wait(&dev->watch_seq, seen, left_ns);
    }
}

/* Under the lock: sleeps until an operation begins, or for HC_IDLE_NS. */
static void sleep_long(hc_device *dev) {
    uint32_t seen = __atomic_load_n(&dev->watch_seq, __ATOMIC_RELAXED);
    dev->watch_idle = 1;
    pthread_mutex_unlock(&dev->lock);
    hc_futex_wait(&dev->watch_seq, seen, HC_IDLE_NS);
    pthread_mutex_lock(&dev->lock);
    dev->watch_idle = 0;
}

static void *watch_main(void *argument) {
    hc_device *dev = argument;
    int found = 0;
    pthread_mutex_lock(&dev->lock);
    while (!dev->watch_stop) {
        if (!dev->active && !dev->hung && !found) {
            sleep_long(dev);
            continue;
        }
        dev->hung = 0;
        pthread_mutex_unlock(&dev->lock);
        nap(dev, dev->progress_ns / LOOKS);
        pthread_mutex_lock(&dev->lock);
        found = look(dev);
    }
    pthread_mutex_unlock(&dev->lock);
    return NULL;
}

void hc_wake_watch(hc_device *dev) {
    __atomic_add_fetch(&dev->watch_seq, 1, __ATOMIC_SEQ_CST);
    hc_futex_wake(&dev->watch_seq, 1);
}

int hc_start_watch(hc_device *dev) {
    dev->watching = !hc_start_thread(&dev->watch, NULL, STACK_NBYTES, watch_main, dev);
    return dev->watching ? 0 : -1;
}

void hc_stop_watch(hc_device *dev) {
    if (!dev->watching) return;
    pthread_mutex_lock(&dev->lock);
    __atomic_store_n(&dev->watch_stop, 1, __ATOMIC_RELEASE);
    hc_wake_watch(dev);
    pthread_mutex_unlock(&dev->lock);
    pthread_join(dev->watch, NULL);
    dev->watching = 0;
}
