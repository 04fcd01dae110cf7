/* A member's end of a group between processes: its thread runs the member's calls, one after the other in the
 * order of their numbers. It decides nothing about failure: it notes what holds it up and goes on waiting until the
 * operation's timeline has failed, which the host side sees to. */
#include "link.h"
#include <signal.h>
#include <sys/mman.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#define SPIN_NS 20000
#define LOOK_NS 10000000 /* how often a sleeping wait looks whether its operation has failed */

static size_t ends_nbytes(int size) { return (size * sizeof(hc_end) + 4095) / 4096 * 4096; }

/* The size of the memory that a group shares. */
int64_t hc_link_nbytes(int size) { return (int64_t)(ends_nbytes(size) + 2 * size * sizeof(hc_slot_data)); }

void hc_link_ref(hc_link *l) { atomic_fetch_add(&l->refs, 1); }

void hc_link_release(hc_link *l) {
    if (atomic_fetch_sub(&l->refs, 1) != 1) return;
    munmap(l->ends, l->nbytes);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->changed);
    hc_release_device(l->dev);
    free(l);
}

static void wake(hc_end *end) {
    if (__atomic_load_n(&end->sleepers, __ATOMIC_SEQ_CST)) hc_shared_wake(&end->posted);
}

/* Others look at the presence only while they wait, so that what was posted before counts. The first word stays. */
static void go(hc_link *l, uint32_t presence) {
    hc_end *end = &l->ends[l->rank];
    uint32_t here = HC_HERE;
    __atomic_compare_exchange_n(&end->presence, &here, presence, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    wake(end);
}

static void post(hc_link *l, const hc_call *c, int64_t step) {
    hc_slot_data *slot = hc_slot_of(l, l->rank, l->step);
    const hc_shape *s = &c->shape;
    slot->said = (hc_said){.number = c->number, .count = s->count, .kind = s->kind, .dtype = s->dtype,
                           .reduce = s->reduce, .root = s->root, .counts = 0xcbf29ce484222325ULL};
    for (int i = 0; c->counts && i < s->size * s->size; i++)
        slot->said.counts = (slot->said.counts ^ (uint64_t)c->counts[i]) * 0x100000001b3ULL;
    hc_chunk_send(l, c, step, slot->data);
    __atomic_store_n(&l->ends[l->rank].posted, l->step + 1, __ATOMIC_SEQ_CST);
    wake(&l->ends[l->rank]);
}

static int has_posted(const hc_link *l, int rank, uint32_t step) {
    return (int32_t)(__atomic_load_n(&l->ends[rank].posted, __ATOMIC_ACQUIRE) - step) > 0;
}

static int spin(const hc_link *l, int rank) {
    int64_t until_ns = hc_now() + SPIN_NS;
    do {
        for (int i = 0; i < 64; i++) {
            if (has_posted(l, rank, l->step)) return 1;
#ifdef __x86_64__
            _mm_pause();
#endif
        }
    } while (hc_now() < until_ns);
    return 0;
}

static int is_gone(hc_link *l, int rank) {
    return atomic_load(&l->gone[rank]) || __atomic_load_n(&l->ends[rank].presence, __ATOMIC_SEQ_CST) != HC_HERE;
}

static int says_the_same(const hc_link *l, int rank) {
    return !memcmp(&hc_slot_of(l, rank, l->step)->said, &hc_slot_of(l, l->rank, l->step)->said, sizeof(hc_said));
}

/* Notes a member that will not post this step any more, and one that says another call. */
static void look_around(hc_link *l, int first) {
    for (int r = 0; r < l->size; r++) {
        int gone = is_gone(l, r); /* first: after it the counter is final */
        if (r == l->rank || (!gone && !has_posted(l, r, l->step))) continue;
        if (!has_posted(l, r, l->step)) atomic_store(&l->stuck, r + 1);
        else if (first && !says_the_same(l, r)) atomic_store(&l->differs, r + 1);
    }
}

/* Waits for the rank's post of this step; 0 when the operation has failed meanwhile. */
static int await(hc_link *l, hc_op *op, int rank, int first) {
    hc_end *end = &l->ends[rank];
    if (spin(l, rank)) return 1;
    __atomic_add_fetch(&end->sleepers, 1, __ATOMIC_SEQ_CST);
    while (!atomic_load(&op->timeline->failure) && !has_posted(l, rank, l->step)) {
        look_around(l, first);
        hc_shared_wait(&end->posted, l->step, LOOK_NS);
    }
    __atomic_sub_fetch(&end->sleepers, 1, __ATOMIC_SEQ_CST);
    return has_posted(l, rank, l->step);
}

static int await_all(hc_link *l, hc_op *op, int first) {
    atomic_store(&l->awaited, l->step);
    atomic_store(&l->waiting, 1);
    int here = 1;
    for (int r = 0; r < l->size && here; r++) here = r == l->rank || await(l, op, r, first);
    atomic_store(&l->waiting, 0);
    if (here && first) look_around(l, first);
    return here;
}

/* Everybody is there: from now on a closing device waits for the operation. 0 when it has failed meanwhile. */
static int activate(hc_link *l, hc_op *op) {
    pthread_mutex_lock(&l->dev->lock);
    int alive = !op->detached;
    if (alive) {
        op->active = 1;
        l->dev->active++;
        op->item.start_ns = hc_now();
    }
    pthread_mutex_unlock(&l->dev->lock);
    return alive;
}

/* Where the members do not agree on the call, all of them find that, and the host side fails it. */
static int begin(hc_link *l, hc_op *op) {
    while (atomic_load(&l->differs)) {
        if (atomic_load(&op->timeline->failure)) return 0;
        struct timespec look = {0, LOOK_NS / 10};
        nanosleep(&look, NULL);
    }
    return activate(l, op);
}

static int run(hc_link *l, hc_call *c, hc_op *op) {
    int64_t steps = hc_chunk_steps(c);
    for (int64_t k = 0; k < steps; k++, l->step++) {
        post(l, c, k);
        if (!await_all(l, op, k == 0)) return 0;
        if (k == 0 && !begin(l, op)) return 0;
        hc_chunk_take(l, c, k);
        atomic_store(&l->moved_ns, hc_now());
    }
    return 1;
}

static void finish(hc_link *l, hc_op *op) {
    hc_device *dev = l->dev;
    pthread_mutex_lock(&dev->lock);
    if (!op->detached) hc_add_span(dev, &op->item, hc_now(), dev->threads);
    hc_op_done(dev, op, 0);
    hc_drain(dev);
    hc_kick(dev, 0);
    pthread_mutex_unlock(&dev->lock);
}

/* In place an ALL_TO_ALL_V would overwrite what it has not sent yet. */
static void save_source(hc_call *c, int rank) {
    hc_member *m = &c->members[rank];
    if (!m->scratch) return;
    memcpy(m->scratch, m->src, hc_sent_before(&c->shape, c->counts, rank, c->shape.size) * hc_nbytes_of(c->shape.dtype));
    m->src = m->scratch;
}

static void run_call(hc_link *l, hc_call *c) {
    hc_op *op = c->members[l->rank].op;
    save_source(c, l->rank);
    atomic_store(&l->moved_ns, hc_now());
    if (!run(l, c, op)) hc_link_skip(l);
    finish(l, op);
}

/* Under the lock: takes the call that is next by its number out of the queue. */
static hc_call *take_next(hc_link *l) {
    hc_call **at = &l->queue;
    if (atomic_load(&l->skipped)) return NULL;
    while (*at && (*at)->number != l->next) at = &(*at)->next;
    hc_call *c = *at;
    if (!c) return NULL;
    *at = c->next;
    atomic_store(&c->members[l->rank].stage, HC_MOVING);
    return c;
}

static void serve(hc_link *l) {
    pthread_mutex_lock(&l->lock);
    while (!l->ending) {
        l->running = take_next(l);
        if (!l->running) {
            hc_cond_wait(&l->changed, &l->lock, HC_IDLE_NS);
            continue;
        }
        pthread_mutex_unlock(&l->lock);
        run_call(l, l->running);
        pthread_mutex_lock(&l->lock);
        l->running = NULL;
        l->next++;
    }
    pthread_mutex_unlock(&l->lock);
}

static void unlist(hc_link *l) {
    pthread_mutex_lock(&l->dev->lock);
    hc_link **at = &l->dev->links;
    while (*at != l) at = &(*at)->next_of_device;
    *at = l->next_of_device;
    pthread_mutex_unlock(&l->dev->lock);
}

static void *link_main(void *argument) {
    hc_link *l = argument;
#ifdef __x86_64__
    _mm_setcsr(0x1f80); /* denormals as declared */
#endif
    serve(l);
    unlist(l);
    hc_link_release(l);
    return NULL;
}

/* Detached: it ends soon after `hc_link_end`, and holds the link till then. */
static int start(hc_link *l) {
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, NULL, link_main, l);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error) pthread_detach(thread);
    return error;
}

static void list(hc_link *l, hc_device *dev) {
    pthread_mutex_lock(&dev->lock);
    l->next_of_device = dev->links;
    dev->links = l;
    pthread_mutex_unlock(&dev->lock);
}

/* The end of `rank` in the shared memory of `fd`, which stays the caller's; NULL without memory or threads. */
hc_link *hc_link_new(hc_device *dev, int fd, int rank, int size) {
    hc_link *l = calloc(1, sizeof *l + size);
    if (!l) return NULL;
    l->nbytes = hc_link_nbytes(size);
    void *shared = mmap(NULL, l->nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED) {
        free(l);
        return NULL;
    }
    atomic_init(&l->refs, 2); /* the caller's and the thread's */
    atomic_fetch_add(&dev->refs, 1);
    l->dev = dev;
    l->rank = rank;
    l->size = size;
    l->ends = shared;
    l->slots = (hc_slot_data *)((char *)shared + ends_nbytes(size));
    pthread_mutex_init(&l->lock, NULL);
    hc_cond_init(&l->changed);
    list(l, dev);
    if (!start(l)) return l;
    unlist(l);
    hc_link_release(l);
    hc_link_release(l);
    return NULL;
}

/* Under the device lock: the member's turn on its timeline has come. */
void hc_link_arrive(hc_call *c) {
    hc_link *l = c->link;
    pthread_mutex_lock(&l->lock);
    c->next = l->queue;
    l->queue = c;
    pthread_cond_signal(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

/* Takes a call out of the queue; 0 when it is taken already, so that its operation must stay. */
int hc_link_leave(hc_call *c) {
    hc_link *l = c->link;
    pthread_mutex_lock(&l->lock);
    int left = l->running != c;
    hc_call **at = &l->queue;
    while (*at && *at != c) at = &(*at)->next;
    if (*at) *at = c->next;
    pthread_mutex_unlock(&l->lock);
    return left;
}

/* A call did not run on this member, so the members' counters do not fit any more. */
void hc_link_skip(hc_link *l) { atomic_store(&l->skipped, 1); }

/* No call follows and none is queued or runs: the others learn that the member has left, and the thread ends. */
void hc_link_end(hc_link *l) {
    go(l, HC_LEFT);
    pthread_mutex_lock(&l->lock);
    l->ending = 1;
    pthread_cond_signal(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

/* Under the device lock: the device is lost, and the members in other processes shall know at once. */
void hc_links_lose(hc_device *dev) {
    for (hc_link *l = dev->links; l; l = l->next_of_device) go(l, HC_AWAY);
}

void hc_link_gone(hc_link *l, int rank) { atomic_store(&l->gone[rank], 1); }

/* 1 + the rank that the member waits for in vain, since it is gone; 0 without one. */
int hc_link_stuck(hc_link *l) { return atomic_load(&l->stuck); }

/* 1 + a rank that says another call of the same number; 0 without one. */
int hc_link_differs(hc_link *l) { return atomic_load(&l->differs); }
int hc_link_skipped(hc_link *l) { return atomic_load(&l->skipped); }
int64_t hc_link_moved_ns(hc_link *l) { return atomic_load(&l->moved_ns); }
int hc_link_state(hc_link *l, int rank) { return (int)__atomic_load_n(&l->ends[rank].presence, __ATOMIC_SEQ_CST); }

/* Whether the member waits for this rank. */
int hc_link_lags(hc_link *l, int rank) {
    return atomic_load(&l->waiting) && !has_posted(l, rank, atomic_load(&l->awaited));
}

/* What the rank says in the step that failed to agree. */
void hc_link_said(hc_link *l, int rank, hc_said *out) {
    *out = hc_slot_of(l, rank, atomic_load(&l->awaited))->said;
}
