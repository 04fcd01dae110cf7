/* A collective call among ranks that are all on one host: all come to it and compare their calls, then it runs in the
 * way that suits its size and where its memory lies. */
#include "engine.h"

#define SMALL_NBYTES 16384 /* up to here the data comes with the call, so that one exchange is enough */
#define MOST_BRIEF_RANKS 65535
#define BRIEF_LOOKS 40

/* What one step has room for, too. */
static int is_small(const he_group *g, const he_work *w) {
    int64_t most = w->call.count, size = he_nbytes_of(w->call.dtype);
    int n = !w->counts ? 0 : w->call.kind == HE_ALL_TO_ALL_V ? g->size * g->size : g->size;
    for (int i = 0; i < n; i++) most = w->counts[i] > most ? w->counts[i] : most;
    return most * size * (he_for_each(w->call.kind) ? g->size : 1) <= SMALL_NBYTES;
}

/* All but name and sequence of a small call whose parts are equal, where they have room in 64 bits; else 0. */
static uint64_t what(const he_group *g, const he_work *w) {
    const he_call *c = &w->call;
    if (c->digest || g->size > MOST_BRIEF_RANKS) return 0;
    return 1 | (uint64_t)c->kind << 4 | (uint64_t)c->dtype << 8 | (uint64_t)c->reduce << 12 | (uint64_t)(c->root + 1) << 16 |
           (uint64_t)c->count << 32;
}

/* The bytes from the start of this rank's source or destination to its end. */
static int64_t extent(const he_group *g, const he_work *w, int sent) {
    int64_t n = 0;
    for (int r = 0; r < g->size; r++) {
        int64_t count = sent ? he_part_count(g, w, g->rank, r) : he_part_count(g, w, r, g->rank);
        int64_t at = sent ? he_part_in_src(g, w, g->rank, r) : he_part_in_dst(g, w, r, g->rank);
        n = at + count > n ? at + count : n;
    }
    return n * he_nbytes_of(w->call.dtype);
}

/* Whether others may read the source while this rank writes its destination. */
static int separate(const he_group *g, const he_work *w) {
    int64_t size = he_nbytes_of(w->call.dtype);
    const unsigned char *own = w->src + he_part_in_src(g, w, g->rank, g->rank) * size;
    if (w->dst + extent(g, w, 0) <= w->src || w->src + extent(g, w, 1) <= w->dst) return 1;
    if (w->call.kind == HE_ALL_TO_ALL || w->call.kind == HE_ALL_TO_ALL_V) return 0;
    return own == w->dst + he_part_in_dst(g, w, g->rank, g->rank) * size;
}

static void tell(he_group *g, he_work *w) {
    he_said *said = &he_step_slot_of(g, g->here, w->number)->said;
    he_last_write(&g->ends[g->here].last, &w->call);
    said->call = w->call;
    said->dst = said->src = (he_place){0, 0};
    said->attached = 0;
    if (w->small || !separate(g, w)) return;
    said->attached = g->attach == HE_ATTACHED;
    said->src_at = (uint64_t)(uintptr_t)w->src;
    said->dst_at = (uint64_t)(uintptr_t)w->dst;
    if (w->src) said->src = he_place_of(g, w->src);
    int others_write = w->call.kind == HE_ALL_REDUCE || w->call.kind == HE_ALL_GATHER || he_is_rooted(w->call.kind);
    if (w->dst && others_write) said->dst = he_place_of(g, w->dst);
}

/* Ahead of the rest, which only a rank reads that does not look for a line, or has made another call. */
static void show_brief(he_group *g, const he_work *w, uint64_t is) {
    he_brief *brief = he_brief_of(g, g->here, w->first);
    brief->what = is;
    brief->name = w->call.name;
    brief->sequence = (uint32_t)w->call.sequence;
    if (w->within) he_step_show(g, w, 0, brief->data);
    __atomic_store_n(&brief->post, w->first + 1, __ATOMIC_RELEASE);
}

static void come(he_group *g, he_work *w) {
    w->small = is_small(g, w);
    w->number = g->step_number++;
    w->call.sequence = g->sequence++;
    w->first = g->posts;
    uint64_t is = w->small ? what(g, w) : 0;
    w->brief = is != 0;
    w->within = w->brief && w->call.count * he_nbytes_of(w->call.dtype) * (he_for_each(w->call.kind) ? g->size : 1) <= BRIEF_NBYTES;
    if (w->small && !w->within) he_step_show(g, w, 0, he_step_slot_of(g, g->here, w->number)->data);
    if (w->brief) show_brief(g, w, is);
    tell(g, w);
    he_post(g);
    w->shown = 1;
}

/* Whether a rank shows in one line that it has made the same call. */
static int is_same(const he_group *g, const he_work *w, int i) {
    const he_brief *brief = he_brief_of(g, i, w->first);
    return w->brief && __atomic_load_n(&brief->post, __ATOMIC_ACQUIRE) == w->first + 1 && brief->what == what(g, w) &&
           brief->name == w->call.name && brief->sequence == (uint32_t)w->call.sequence;
}

/* All but a rank that comes later show their lines meanwhile. */
static int look(const he_group *g, const he_work *w, int i) {
    for (int k = 0; w->brief && k < BRIEF_LOOKS; k++) {
        if (is_same(g, w, i)) return 1;
        he_relax();
    }
    return 0;
}

static int has_posted(const he_group *g, const he_work *w, int i) {
    return (int32_t)(__atomic_load_n(&g->ends[i].posted, __ATOMIC_ACQUIRE) - w->first) > 0;
}

static int differs(he_group *g, const he_work *w, int i) {
    return is_same(g, w, i) ? HE_OK : he_differs(g, g->ranks[i], &w->call, &he_step_slot_of(g, i, w->number)->said.call);
}

/* Tells of the call, waits until all have told of theirs, and compares. HE_PENDING when the budget is used up. */
int he_arrive(he_group *g, he_work *w) {
    int code = w->shown ? HE_OK : he_look(g), left = 0;
    if (code) return code;
    if (!w->shown) come(g, w);
    for (int i = 0; i < g->size; i++) left += i != g->here && !look(g, w, i);
    for (int i = 0; left && i < g->size; i++) /* those who are there first, so that a late one does not hide a wrong one */
        if (has_posted(g, w, i) && (code = differs(g, w, i))) return code;
    for (int i = 0; left && i < g->size; i++)
        if (i != g->here && ((code = he_await(g, w, i, w->first)) || (code = differs(g, w, i)))) return code;
    w->arrived = 1;
    return HE_OK;
}

static int way_of(he_group *g, const he_work *w) {
    if (w->small) return HE_BY_POST;
    he_attach_try(g);
    if (he_direct(g, w, w->number)) return HE_BY_MAPPING;
    int kind = w->call.kind, attached = he_attached(g, w, w->number);
    if (kind == HE_BROADCAST && (!attached || w->call.count * he_nbytes_of(w->call.dtype) < HE_ATTACH_NBYTES)) return HE_BY_SLICES;
    /* what is not reduced and fits into one step goes through the cache faster than page by page through the kernel */
    if (attached && (he_reduces(kind) || he_step_count(g, w) > 1)) return HE_BY_READING;
    return kind == HE_ALL_REDUCE || kind == HE_REDUCE ? HE_BY_SLICES : HE_BY_STEPS;
}

static int move(he_group *g, he_work *w) {
    int way = way_of(g, w);
    atomic_store_explicit(&g->way, way, memory_order_relaxed);
    switch (way) {
    case HE_BY_POST: he_step_take(g, w, 0, w->number); return HE_OK;
    case HE_BY_MAPPING: return he_run_direct(g, w, w->number);
    case HE_BY_READING: return he_run_attached(g, w, w->number);
    case HE_BY_SLICES: return he_run_sliced(g, w);
    default: return he_run_stepped(g, w);
    }
}

/* All have come: the rest of the call. */
int he_finish(he_group *g, he_work *w) {
    int code = move(g, w);
    if (!code) he_last_ended(&g->ends[g->here].last, (uint64_t)w->call.sequence + 1);
    return code;
}
