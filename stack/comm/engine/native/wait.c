/* Showing something to the ranks of this host, and waiting for what they show. */
#include "channel.h"
#include <sched.h>

#define SPIN_NS 200000 /* longer than waking a rank takes: else ranks that sleep once make each other sleep again */
#define CROWDED_SPIN_NS 2000 /* where ranks wait for the core that this one would spin on */

/* Which cores this rank may run on, as the ranks of its host may have one each. */
void he_tell_cores(he_group *g) {
    uint64_t *told = g->ends[g->here].cores;
    cpu_set_t cores;
    CPU_ZERO(&cores);
    if (sched_getaffinity(0, sizeof cores, &cores)) CPU_SET(0, &cores);
    for (int word = 0; word < CORES / 64; word++) {
        uint64_t bits = 0;
        for (int bit = 0; bit < 64; bit++) bits |= (uint64_t)!!CPU_ISSET(64 * word + bit, &cores) << bit;
        __atomic_store_n(&told[word], bits, __ATOMIC_RELAXED);
    }
}

/* Those of all ranks of this host. 0 before all have told. */
int he_cores_of_all(const he_group *g, uint64_t *all) {
    for (int word = 0; word < CORES / 64; word++) all[word] = 0;
    for (int i = 0; i < g->nlocal; i++) {
        uint64_t told = 0, theirs;
        for (int word = 0; word < CORES / 64; word++) {
            told |= theirs = __atomic_load_n(&g->ends[i].cores[word], __ATOMIC_RELAXED);
            all[word] |= theirs;
        }
        if (!told) return 0;
    }
    return 1;
}

/* Whether the ranks that share cores with this one, or with one that does, have fewer than they are. -1 before all have told. */
static int crowded(const he_group *g) {
    uint64_t all[CORES / 64];
    int ranks = 0, before = -1, cores = 0;
    for (int word = 0; word < CORES / 64; word++) all[word] = __atomic_load_n(&g->ends[g->here].cores[word], __ATOMIC_RELAXED);
    while (ranks != before) {
        before = ranks;
        ranks = 0;
        for (int i = 0; i < g->nlocal; i++) {
            uint64_t theirs[CORES / 64], told = 0, shared = 0;
            for (int word = 0; word < CORES / 64; word++) {
                theirs[word] = __atomic_load_n(&g->ends[i].cores[word], __ATOMIC_RELAXED);
                told |= theirs[word];
                shared |= theirs[word] & all[word];
            }
            if (!told) return -1;
            for (int word = 0; shared && word < CORES / 64; word++) all[word] |= theirs[word];
            ranks += !!shared;
        }
    }
    for (int word = 0; word < CORES / 64; word++) cores += __builtin_popcountll(all[word]);
    return cores < ranks;
}

int64_t he_spin_ns(he_group *g) {
    int64_t known = atomic_load_explicit(&g->spin_ns, memory_order_relaxed);
    if (known) return known;
    int is = crowded(g);
    if (is < 0) return CROWDED_SPIN_NS;
    atomic_store_explicit(&g->spin_ns, known = is ? CROWDED_SPIN_NS : SPIN_NS, memory_order_relaxed);
    return known;
}

static int has_posted(const he_group *g, int i, uint32_t number) {
    return (int32_t)(__atomic_load_n(&g->ends[i].posted, __ATOMIC_ACQUIRE) - number) > 0;
}

/* What this rank wrote before is there for all. */
void he_post(he_group *g) {
    he_end *end = &g->ends[g->here];
    __atomic_store_n(&end->posted, ++g->posts, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&end->sleepers, __ATOMIC_SEQ_CST)) he_wake(&end->posted);
}

static int look(const he_group *g, int i, uint32_t number, int times) {
    for (int k = 0; k < times; k++) {
        if (has_posted(g, i, number)) return 1;
        he_relax();
    }
    return 0;
}

/* First alone, then letting others of this core go first, of whom the awaited rank may be one. */
static int spin(he_group *g, int i, uint32_t number) {
    if (look(g, i, number, 40)) return 1;
    for (int64_t until_ns = he_now() + he_spin_ns(g); he_now() < until_ns; sched_yield())
        if (look(g, i, number, 4)) return 1;
    return 0;
}

static int late(he_group *g, const he_work *w, int i) {
    int done;
    he_call last = he_last_read(&g->ends[i].last, &done);
    return he_fail_late(g, g->ranks[i], &w->call, &last, done);
}

/* A rank that left will not show anything more; one that is lost has failed the group. */
static int gone(he_group *g, const he_work *w, int i, uint32_t number) {
    int away = he_is_away(g, HE_PROGRAMS, g->ranks[i]);
    if (!away || has_posted(g, i, number)) return 0;
    int code = he_look(g); /* it may have left because of a failure */
    return code ? code : he_fail(g, HE_LEFT, g->ranks[i], g->rank, &w->call, NULL, 0);
}

static int sleep_for(he_group *g, const he_work *w, int i, uint32_t number, int64_t until_ns) {
    he_end *end = &g->ends[i];
    int code = HE_OK;
    for (uint32_t seen; seen = __atomic_load_n(&end->posted, __ATOMIC_SEQ_CST), !has_posted(g, i, number);) {
        if ((code = he_look(g)) || (code = gone(g, w, i, number))) break;
        if (he_now() > until_ns) {
            code = w->budget_ns ? HE_PENDING : late(g, w, i);
            break;
        }
        he_futex_wait(&end->posted, seen, LOOK_NS);
    }
    return has_posted(g, i, number) && !atomic_load(&g->failed) ? HE_OK : code;
}

/* Waits for the rank's post of this number, at most the call's timeout (then a failure) or budget (HE_PENDING). */
int he_await(he_group *g, const he_work *w, int i, uint32_t number) {
    if (has_posted(g, i, number) || spin(g, i, number)) return HE_OK;
    he_end *end = &g->ends[i];
    __atomic_add_fetch(&end->sleepers, 1, __ATOMIC_SEQ_CST);
    int code = sleep_for(g, w, i, number, he_now() + (w->budget_ns ? w->budget_ns : w->timeout_ns));
    __atomic_sub_fetch(&end->sleepers, 1, __ATOMIC_SEQ_CST);
    return code;
}

int he_await_all(he_group *g, const he_work *w, uint32_t number) {
    for (int i = 0; i < g->nlocal; i++) {
        int code = i == g->here ? HE_OK : he_await(g, w, i, number);
        if (code) return code;
    }
    return HE_OK;
}
