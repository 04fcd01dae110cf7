/* Worker threads. They pick ready items themselves; a large item is one `slot` that all idle workers join, each
 * starting in its own contiguous part of the index range and helping in the others' when that is used up. */
#include "runtime.h"
#include <sched.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#define SPIN_NS 30000
#define WORTH_SHARING_NS 3000.0f
#define PARTS 16 /* of a worker's range, at least: ends together, and shows the watch that it comes on */

static void pause_cpu(void) {
#ifdef __x86_64__
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int is_short(const hc_item *item) {
    if (item->total == 1) return 1;
    float cost = item->launchable ? atomic_load_explicit(&item->launchable->cost_ns, memory_order_relaxed) : 0;
    return cost > 0 && cost * item->total < WORTH_SHARING_NS;
}

/* How many workers the item can keep busy for long enough to pay for their waking. */
static int useful_workers(hc_device *dev, const hc_item *item) {
    if (is_short(item)) return 1;
    return item->total < dev->threads ? (int)item->total : dev->threads;
}

void hc_ready(hc_device *dev, hc_item *item) {
    item->next = NULL;
    *dev->ready_end = item;
    dev->ready_end = &item->next;
    dev->wanted += useful_workers(dev, item);
}

/* Wakes workers for what became ready; `helping` of them are awake already (the caller, if it is a worker). */
void hc_kick(hc_device *dev, int helping) {
    int more = dev->wanted - helping;
    dev->wanted = 0;
    if (more <= 0) return;
    __atomic_add_fetch(&dev->work_seq, 1, __ATOMIC_SEQ_CST);
    more -= dev->spinners;
    if (more > dev->sleepers) more = dev->sleepers;
    if (more > 0) hc_futex_wake(&dev->work_seq, more);
}

static hc_item *take_ready(hc_device *dev) {
    hc_item *item = dev->ready;
    if (!item) return NULL;
    dev->ready = item->next;
    if (!dev->ready) dev->ready_end = &dev->ready;
    return item;
}

/* NULL when the system has no memory for one more. */
static hc_slot *new_slot(hc_device *dev) {
    hc_slot *s = calloc(1, sizeof *s);
    hc_range *ranges = aligned_alloc(64, dev->threads * sizeof *ranges);
    if (!s || !ranges) {
        free(s);
        free(ranges);
        return NULL;
    }
    s->ranges = ranges;
    s->next = dev->slots;
    return dev->slots = s;
}

static hc_slot *free_slot(hc_device *dev) {
    for (hc_slot *s = dev->slots; s; s = s->next)
        if (!s->item) return s;
    return new_slot(dev);
}

/* Splits the range so that neighbouring instances stay with one worker, in equal parts. */
static void fill_slot(hc_slot *s, hc_item *item, int nranges, int nparts) {
    s->item = item;
    s->joined = 0;
    s->runs++;
    s->nranges = nranges;
    s->step = item->total / (nranges * nparts);
    if (s->step < 1) s->step = 1;
    atomic_store_explicit(&s->busy_ns, 0, memory_order_relaxed);
    for (int i = 0; i < nranges; i++) {
        int64_t share = item->total / nranges, rest = item->total % nranges;
        int64_t begin = share * i + (i < rest ? i : rest);
        atomic_store_explicit(&s->ranges[i].next, begin, memory_order_relaxed);
        s->ranges[i].end = begin + share + (i < rest);
    }
}

/* Nobody takes a new piece of the slot's item. */
void hc_cancel(hc_slot *s) {
    for (int i = 0; i < s->nranges; i++)
        atomic_store_explicit(&s->ranges[i].next, s->ranges[i].end, memory_order_relaxed);
}

/* Work that failed meanwhile ends soon. A collective goes on: it is other members' too. */
void hc_cancel_detached(hc_device *dev) {
    for (int i = 0; i < dev->threads && dev->workers; i++) {
        hc_slot *s = dev->workers[i] ? dev->workers[i]->slot : NULL;
        if (s && s->item->op->detached && s->item->run != HC_RUN_CALL) hc_cancel(s);
    }
}

/* Takes a quarter of what is left of a range, at least `step`: large pieces first, small ones to end together. */
static int64_t claim(hc_range *r, int64_t step, int64_t most, int64_t *begin) {
    int64_t at = atomic_load_explicit(&r->next, memory_order_relaxed);
    for (;;) {
        int64_t left = r->end - at;
        if (left <= 0) return 0;
        int64_t n = left / 4 > step ? left / 4 : step;
        if (n > most) n = most;
        if (n > left) n = left;
        *begin = at;
        if (atomic_compare_exchange_weak_explicit(&r->next, &at, at + n, memory_order_relaxed,
                                                  memory_order_relaxed))
            return n;
    }
}

/* So many instances take a worker so long that the watch surely sees it come on in between. */
static int64_t piece(hc_device *dev, double cost_ns) {
    double most = (double)dev->progress_ns / 8 / cost_ns;
    return most < 1 ? 1 : most < 1e18 ? (int64_t)most : (int64_t)1e18;
}

static int64_t first_piece(hc_device *dev, const hc_item *item) {
    if (item->run == HC_RUN_CALL) return item->total;
    if (item->run != HC_RUN_LAUNCH) return 16;
    float cost_ns = atomic_load_explicit(&item->launchable->cost_ns, memory_order_relaxed);
    return cost_ns > 0 ? piece(dev, cost_ns) : item->total / 1024 + 1;
}

static void run_slot(hc_worker *w, hc_slot *s) {
    int64_t begin, n, start_ns = hc_now(), end_ns = start_ns, most = first_piece(w->dev, s->item);
    for (int i = 0; i < s->nranges; i++) {
        hc_range *r = &s->ranges[(w->index + i) % s->nranges];
        while ((n = claim(r, s->step, most, &begin))) {
            int64_t from_ns = end_ns;
            hc_run_item(s->item, begin, begin + n);
            end_ns = hc_now();
            most = piece(w->dev, (double)(end_ns - from_ns + 1) / (double)n);
        }
    }
    atomic_fetch_add_explicit(&s->busy_ns, end_ns - start_ns, memory_order_relaxed);
}

static void note_cost(hc_item *item, int64_t busy_ns) {
    if (!item->launchable) return;
    float cost = (float)busy_ns / (float)item->total;
    atomic_store_explicit(&item->launchable->cost_ns, cost > 0 ? cost : 0.001f, memory_order_relaxed);
}

static void finish_call(hc_device *dev, hc_call *call, int lane) {
    pthread_mutex_unlock(&dev->lock);
    hc_call_finish(call, dev, lane);
    pthread_mutex_lock(&dev->lock);
}

/* Under the lock: the item's work is done; what waited for it becomes ready. */
static void finish_item(hc_device *dev, hc_item *item, int lane) {
    hc_op *op = item->op;
    if (op->kind != HC_OP_CALL) hc_add_span(dev, item, hc_now(), lane);
    if (op->kind == HC_OP_GRAPH) {
        hc_graph_advance(dev, op, item->command);
        if (op->state->remaining == 0) hc_op_done(dev, op, op->fault >> 3);
    } else if (op->kind == HC_OP_CALL) {
        finish_call(dev, op->call, lane);
    } else {
        hc_op_done(dev, op, op->fault >> 3);
    }
    hc_drain(dev);
}

/* Under the lock: a thread of the host that waited for this work may share the core. It sends what others wait for, and
 * does not get the core from work that goes on for a time slice. */
static void let_woken_go(hc_device *dev) {
    if (!dev->woken) return;
    dev->woken = 0;
    pthread_mutex_unlock(&dev->lock);
    sched_yield();
    pthread_mutex_lock(&dev->lock);
}

static void join_slot(hc_worker *w, hc_slot *s) {
    hc_device *dev = w->dev;
    s->joined++;
    w->slot = s;
    hc_kick(dev, 1);
    pthread_mutex_unlock(&dev->lock);
    run_slot(w, s);
    pthread_mutex_lock(&dev->lock);
    w->slot = NULL;
    if (dev->open == s) dev->open = NULL;
    if (--s->joined) return;
    hc_item *item = s->item;
    s->item = NULL;
    if (!item->op->detached) note_cost(item, atomic_load(&s->busy_ns));
    finish_item(dev, item, w->index);
    let_woken_go(dev);
}

static void run_alone(hc_worker *w, hc_item *item) {
    item->start_ns = hc_now();
    fill_slot(&w->own, item, 1, is_short(item) ? 1 : PARTS);
    if (item->op->detached) hc_cancel(&w->own);
    join_slot(w, &w->own);
}

static void run_together(hc_worker *w, hc_item *item, hc_slot *s, int workers) {
    hc_device *dev = w->dev;
    item->start_ns = hc_now();
    fill_slot(s, item, workers, PARTS);
    dev->open = s;
    dev->wanted += workers;
    join_slot(w, s);
}

/* A worker that leaves more work behind than spinning workers will take wakes the next one. */
static void pass_on(hc_device *dev) {
    if (dev->ready) dev->wanted += 2;
}

/* Under the lock: runs one item or joins one; 0 when nothing is ready. */
int hc_work_once(hc_worker *w) {
    hc_device *dev = w->dev;
    if (dev->open) {
        join_slot(w, dev->open);
        return 1;
    }
    hc_item *item = take_ready(dev);
    if (!item) return 0;
    pass_on(dev);
    int workers = item->op->detached ? 1 : useful_workers(dev, item);
    hc_slot *s = workers > 1 ? free_slot(dev) : NULL;
    if (s) run_together(w, item, s, workers);
    else run_alone(w, item);
    return 1;
}

static int spin(hc_device *dev, uint32_t seen) {
    int64_t until_ns = hc_now() + SPIN_NS;
    do {
        for (int i = 0; i < 64; i++) {
            if (__atomic_load_n(&dev->work_seq, __ATOMIC_ACQUIRE) != seen) return 1;
            pause_cpu();
        }
        /* An idle device lets a host thread that shares this core go first; amid work the wait is short. */
        if (!atomic_load_explicit(&dev->active, memory_order_relaxed)) sched_yield();
    } while (hc_now() < until_ns);
    return 0;
}

/* Under the lock: nothing is ready. Spins for a moment, because the next operation often comes soon, then sleeps. */
void hc_rest(hc_device *dev) {
    uint32_t seen = __atomic_load_n(&dev->work_seq, __ATOMIC_RELAXED);
    dev->wanted = 0;
    dev->spinners++;
    pthread_mutex_unlock(&dev->lock);
    int news = spin(dev, seen);
    pthread_mutex_lock(&dev->lock);
    dev->spinners--;
    if (news || dev->ready || dev->open || dev->stop) return;
    seen = __atomic_load_n(&dev->work_seq, __ATOMIC_RELAXED);
    dev->sleepers++;
    pthread_mutex_unlock(&dev->lock);
    hc_futex_wait(&dev->work_seq, seen, HC_IDLE_NS);
    pthread_mutex_lock(&dev->lock);
    dev->sleepers--;
}
