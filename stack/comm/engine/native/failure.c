/* A group's first failure: kept, shown to the ranks of this host in the segment, and sent to the others by the watch. The
 * groups of a mesh end together: this process hears of a rank in one of them, and ranks that are in another one with it
 * and have nothing to do with that one hear by it who is lost. */
#include "frame.h"

static struct {
    pthread_mutex_t lock; /* inside of all others */
    he_group *groups;
} meshes = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void wake_all(he_group *g) {
    for (int i = 0; i < g->nlocal; i++) {
        he_wake(&g->ends[i].posted);
        for (int lane = 0; lane < 2; lane++) he_wake(&g->ends[i].bells[lane]);
    }
    he_watch_wake();
}

static int is_first(he_group *g) {
    int before = 0;
    return atomic_compare_exchange_strong(&g->failing, &before, 1);
}

/* The watch tells others to look once it sees `failed`. */
static void show(he_group *g, const he_failure *failure) {
    g->failure = *failure;
    g->ends[g->here].failure = *failure;
    __atomic_store_n(&g->ends[g->here].failed, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&g->head->alarm, 1, __ATOMIC_SEQ_CST);
    atomic_store(&g->failed, failure->code);
}

/* What a failure of one group is for another one of its mesh, which has other numbers for ranks. */
static he_failure elsewhere(const he_group *g, const he_failure *failure, const he_group *other) {
    int is_theirs = failure->code & HE_ELSEWHERE;
    he_failure found = {
        .code = failure->code | HE_ELSEWHERE,
        .rank = other->rank,
        .told_by = other->rank,
        .detail = is_theirs ? failure->detail : g->in_job[failure->rank],
        .ours = failure->ours,
        .theirs = failure->theirs,
    };
    found.ours.root = found.theirs.root = -1;
    return found;
}

/* The other groups fail first: who hears of this one's failure may end, and must not be taken there for its cause. */
static int keep(he_group *g, const he_failure *failure) {
    if (!is_first(g)) return 0;
    if (g->mesh) {
        pthread_mutex_lock(&meshes.lock);
        for (he_group *other = meshes.groups; other; other = other->bound) {
            if (other->mesh != g->mesh || !is_first(other)) continue;
            he_failure theirs = elsewhere(g, failure, other);
            show(other, &theirs);
            wake_all(other);
        }
        pthread_mutex_unlock(&meshes.lock);
    }
    show(g, failure);
    return 1;
}

void he_bind(he_group *g) {
    pthread_mutex_lock(&meshes.lock);
    g->bound = meshes.groups;
    meshes.groups = g;
    pthread_mutex_unlock(&meshes.lock);
}

void he_unbind(he_group *g) {
    pthread_mutex_lock(&meshes.lock);
    he_group **at = &meshes.groups;
    while (*at && *at != g) at = &(*at)->bound;
    if (*at) *at = g->bound;
    pthread_mutex_unlock(&meshes.lock);
}

void he_meshes_hold(void) { pthread_mutex_lock(&meshes.lock); }

void he_meshes_let_go(void) { pthread_mutex_unlock(&meshes.lock); }

/* In the child of a fork. */
void he_meshes_forget(void) {
    meshes.groups = NULL;
    pthread_mutex_init(&meshes.lock, NULL);
}

/* The group has failed, unless it has already: gives the code of the first failure. */
int he_fail(he_group *g, int code, int rank, int told_by, const he_call *ours, const he_call *theirs, int detail) {
    he_failure failure = {.code = code, .rank = rank, .told_by = told_by, .detail = detail};
    if (ours) failure.ours = *ours;
    if (theirs) failure.theirs = *theirs;
    if (keep(g, &failure)) wake_all(g);
    int known;
    struct timespec moment = {0, 20000};
    while (!(known = atomic_load(&g->failed))) nanosleep(&moment, NULL); /* another thread, which may go after this one, writes it down */
    return known;
}

/* Rank `rank` said what no rank says. */
int he_nonsense(he_group *g, int rank, int wrong) { return he_fail(g, HE_NONSENSE, rank, g->rank, NULL, NULL, wrong); }

/* Compares a rank's call, as it lies in memory of others, with this one's. */
int he_differs(he_group *g, int rank, const he_call *ours, const void *theirs) {
    he_call call;
    if (!memcmp(theirs, ours, sizeof *ours)) return HE_OK;
    int wrong = he_call_read(g, theirs, &call);
    return wrong ? he_nonsense(g, rank, wrong) : he_fail(g, HE_DIFFERS, rank, g->rank, ours, &call, 0);
}

/* A rank has not come to a call; `last` is its newest one, as it lies in memory of others. */
int he_fail_late(he_group *g, int rank, const he_call *ours, const he_call *last, int done) {
    he_call call;
    int wrong = he_call_read(g, last, &call);
    return wrong ? he_nonsense(g, rank, wrong) : he_fail(g, HE_LATE, rank, g->rank, ours, &call, done);
}

/* Rank `from` told its failure, whose cause is that of this group now. */
void he_adopt(he_group *g, int from, const he_failure *told) {
    he_failure failure = *told;
    if (failure.told_by == failure.rank && failure.rank != from) failure.told_by = from;
    if (keep(g, &failure)) wake_all(g);
}

/* Looks whether anybody of this host tells a failure. 0, or the code of this group's failure. */
int he_look(he_group *g) {
    uint32_t alarm = __atomic_load_n(&g->head->alarm, __ATOMIC_ACQUIRE);
    if (atomic_load(&g->failed) || alarm == g->alarm) return atomic_load(&g->failed);
    g->alarm = alarm;
    for (int i = 0; i < g->nlocal; i++) {
        he_failure told;
        if (i == g->here || !__atomic_load_n(&g->ends[i].failed, __ATOMIC_ACQUIRE)) continue;
        int wrong = he_failure_read(g, &g->ends[i].failure, &told);
        if (wrong) he_nonsense(g, g->ranks[i], wrong);
        else he_adopt(g, g->ranks[i], &told);
    }
    return atomic_load(&g->failed);
}

/* Local, does not block, and may be repeated. Others hear of it. */
void he_abort(he_group *g) {
    if (atomic_load(&g->forked)) return;
    he_fail(g, HE_ABORTED, g->rank, g->rank, NULL, NULL, 0);
}

/* The code of the group's failure, or 0; `out` is all of it, where that is wanted. */
int he_failure_of(he_group *g, he_failure *out) {
    int code = atomic_load(&g->forked) ? HE_FORKED : he_look(g);
    if (out) *out = code && code != HE_FORKED ? g->failure : (he_failure){.code = code};
    return code;
}
