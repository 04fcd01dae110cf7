/* A collective in steps: each rank shows the next piece of its parts in a slot, waits until all have shown theirs, and
 * takes what it needs. Right for every kind, also in place but for HE_ALL_TO_ALL_V; nothing but its slots is read by others. */
#include "engine.h"

typedef struct { int64_t at, n; } he_span;

/* Elements of one part that a step moves: all of it in a small call, whose parts lie side by side where they are equal. */
static int64_t unit(const he_group *g, const he_work *w) {
    if (w->small && !w->counts) return w->call.count;
    int64_t n = STEP_NBYTES / he_nbytes_of(w->call.dtype) / (he_for_each(w->call.kind) ? g->size : 1);
    return n > 64 ? n / 64 * 64 : n;
}

/* What of a part of `count` elements a step moves, from the start of the part. */
static he_span cut(int64_t count, int64_t unit, int64_t step) {
    int64_t at = step * unit;
    if (at >= count) return (he_span){count, 0};
    return (he_span){at, count - at < unit ? count - at : unit};
}

int64_t he_step_count(const he_group *g, const he_work *w) {
    int64_t most = 0, n = unit(g, w);
    for (int from = 0; from < g->size; from++)
        for (int to = 0; to < g->size; to++) {
            int64_t count = he_part_count(g, w, from, to);
            most = count > most ? count : most;
        }
    return most > n ? (most + n - 1) / n : 1;
}

/* Writes what this rank has for the others into its slot. */
void he_step_show(const he_group *g, const he_work *w, int64_t step, unsigned char *data) {
    int64_t n = unit(g, w), size = he_nbytes_of(w->call.dtype);
    int each = he_for_each(w->call.kind);
    for (int to = 0; to < (each ? g->size : 1); to++) {
        int reader = each || w->call.root < 0 ? to : w->call.root;
        he_span now = cut(he_part_count(g, w, g->rank, reader), n, step);
        int64_t at = he_part_in_src(g, w, g->rank, to) + now.at;
        if (now.n) he_near(data + to * n * size, w->src + at * size, now.n * size);
    }
}

/* A rank's part for this one, as it lies in its slot. */
static const unsigned char *shown(const he_group *g, const he_work *w, int from, uint32_t number) {
    int64_t offset = he_for_each(w->call.kind) ? g->rank * unit(g, w) * he_nbytes_of(w->call.dtype) : 0;
    return (w->within ? he_brief_of(g, g->index[from], w->first)->data : he_step_slot_of(g, from, number)->data) + offset;
}

static void take_reduced(const he_group *g, const he_work *w, int64_t step, uint32_t number) {
    int64_t size = he_nbytes_of(w->call.dtype), n;
    he_span now = cut(he_part_count(g, w, g->rank, g->rank), unit(g, w), step);
    const unsigned char *srcs[g->size];
    for (int64_t i = 0; i < now.n; i += n) {
        n = now.n - i < HE_BLOCK ? now.n - i : HE_BLOCK;
        for (int r = 0; r < g->size; r++) srcs[r] = shown(g, w, r, number) + i * size;
        he_reduce_block(w->call.dtype, w->call.reduce, g->size, srcs, n, w->dst + (now.at + i) * size);
    }
}

static void take_parts(const he_group *g, const he_work *w, int64_t step, uint32_t number) {
    int64_t size = he_nbytes_of(w->call.dtype), n = unit(g, w);
    for (int from = 0; from < g->size; from++) {
        he_span now = cut(he_part_count(g, w, from, g->rank), n, step);
        int64_t at = he_part_in_dst(g, w, from, g->rank) + now.at;
        if (now.n) he_near(w->dst + at * size, shown(g, w, from, number), now.n * size);
    }
}

/* Reads what it needs out of all slots. */
void he_step_take(const he_group *g, const he_work *w, int64_t step, uint32_t number) {
    if (he_reduces(w->call.kind)) take_reduced(g, w, step, number);
    else take_parts(g, w, step, number);
}

/* Nobody begins a step before all have shown the one before, so a slot that is written is one that all have read. */
int he_run_stepped(he_group *g, const he_work *w) {
    int64_t steps = he_step_count(g, w);
    for (int64_t k = 0; k < steps; k++) {
        uint32_t number = g->step_number++;
        he_step_show(g, w, k, he_step_slot_of(g, g->here, number)->data);
        he_post(g);
        int code = he_await_all(g, w, g->posts - 1);
        if (code) return code;
        he_step_take(g, w, k, number);
    }
    return HE_OK;
}
