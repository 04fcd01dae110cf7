/* What a collective moves: the part that each rank sends to each other, and where it lies. */
#include "engine.h"

int he_reduces(int kind) { return kind == HE_ALL_REDUCE || kind == HE_REDUCE || kind == HE_REDUCE_SCATTER; }

/* Whether one rank gives or gets it all. */
int he_is_rooted(int kind) { return kind == HE_BROADCAST || kind == HE_SCATTER || kind == HE_GATHER || kind == HE_REDUCE; }

/* Whether a source has a part for each rank. */
int he_for_each(int kind) {
    return kind == HE_REDUCE_SCATTER || kind == HE_ALL_TO_ALL || kind == HE_ALL_TO_ALL_V || kind == HE_SCATTER;
}

static int64_t counted(const he_work *w, int rank) { return w->counts ? w->counts[rank] : w->call.count; }

static int64_t counted_before(const he_work *w, int rank) {
    int64_t n = 0;
    if (!w->counts) return rank * w->call.count;
    for (int r = 0; r < rank; r++) n += w->counts[r];
    return n;
}

/* Elements that rank `from` has for rank `to`. */
int64_t he_part_count(const he_group *g, const he_work *w, int from, int to) {
    int root = w->call.root;
    switch (w->call.kind) {
    case HE_BARRIER: return 0;
    case HE_BROADCAST: return from == root ? w->call.count : 0;
    case HE_SCATTER: return from == root ? counted(w, to) : 0;
    case HE_GATHER: return to == root ? counted(w, from) : 0;
    case HE_ALL_GATHER: return counted(w, from);
    case HE_REDUCE_SCATTER: return counted(w, to);
    case HE_ALL_TO_ALL_V: return w->counts[from * g->size + to];
    case HE_REDUCE: return to == root ? w->call.count : 0;
    default: return w->call.count;
    }
}

/* Where it lies in the source of rank `from`. */
int64_t he_part_in_src(const he_group *g, const he_work *w, int from, int to) {
    int64_t n = 0;
    if (w->call.kind != HE_ALL_TO_ALL_V) return he_for_each(w->call.kind) ? counted_before(w, to) : 0;
    for (int r = 0; r < to; r++) n += w->counts[from * g->size + r];
    return n;
}

/* Where it goes in the destination of rank `to`. */
int64_t he_part_in_dst(const he_group *g, const he_work *w, int from, int to) {
    int64_t n = 0;
    switch (w->call.kind) {
    case HE_ALL_GATHER: case HE_GATHER: return counted_before(w, from);
    case HE_ALL_TO_ALL: return from * w->call.count;
    case HE_ALL_TO_ALL_V:
        for (int r = 0; r < from; r++) n += w->counts[r * g->size + to];
        return n;
    default: return 0;
    }
}
