/* What a member writes into its slot in a step of a call between processes, and what it takes from the others'. */
#include "link.h"

typedef struct { int64_t at, n; } hc_span_of; /* elements [at, at + n) */

static int for_each(const hc_shape *s) { /* a source has a part for each rank */
    return s->kind == REDUCE_SCATTER || s->kind == ALL_TO_ALL || s->kind == ALL_TO_ALL_V || s->kind == SCATTER;
}

static int reduces(const hc_shape *s) {
    return s->kind == ALL_REDUCE || s->kind == REDUCE || s->kind == REDUCE_SCATTER;
}

/* Elements of one part that a step moves. */
static int64_t unit(const hc_shape *s) {
    int64_t n = SLOT_NBYTES / hc_nbytes_of(s->dtype) / (for_each(s) ? s->size : 1);
    return n > 64 ? n / 64 * 64 : n;
}

/* Where a part of rank `from` lies in its source: its part for rank `to`, or all of it. */
static hc_span_of part(const hc_call *c, int from, int to) {
    const hc_shape *s = &c->shape;
    int rooted = s->kind == BROADCAST || s->kind == SCATTER;
    if (s->kind == BARRIER || (rooted && from != s->root)) return (hc_span_of){0, 0};
    if (s->kind == ALL_TO_ALL_V)
        return (hc_span_of){hc_sent_before(s, c->counts, from, to), c->counts[from * s->size + to]};
    return (hc_span_of){for_each(s) ? to * s->count : 0, s->count};
}

/* What of a part a step moves, from the start of the part. */
static hc_span_of cut(const hc_shape *s, hc_span_of whole, int64_t step) {
    int64_t n = unit(s), at = step * n;
    if (at >= whole.n) return (hc_span_of){whole.n, 0};
    return (hc_span_of){at, whole.n - at < n ? whole.n - at : n};
}

int64_t hc_chunk_steps(const hc_call *c) {
    const hc_shape *s = &c->shape;
    int64_t most = s->kind == BARRIER ? 0 : s->count;
    for (int i = 0; c->counts && i < s->size * s->size; i++)
        if (c->counts[i] > most) most = c->counts[i];
    int64_t n = (most + unit(s) - 1) / unit(s);
    return n > 0 ? n : 1;
}

void hc_chunk_send(const hc_link *l, const hc_call *c, int64_t step, unsigned char *slot) {
    const hc_shape *s = &c->shape;
    int64_t size = hc_nbytes_of(s->dtype);
    for (int to = 0; to < (for_each(s) ? l->size : 1); to++) {
        hc_span_of whole = part(c, l->rank, to), now = cut(s, whole, step);
        if (now.n) memcpy(slot + to * unit(s) * size, c->members[l->rank].src + (whole.at + now.at) * size, now.n * size);
    }
}

/* A rank's part for this member, as it lies in its slot. */
static const unsigned char *sent(const hc_link *l, const hc_call *c, int from) {
    int64_t offset = for_each(&c->shape) ? l->rank * unit(&c->shape) * hc_nbytes_of(c->shape.dtype) : 0;
    return hc_slot_of(l, from, l->step)->data + offset;
}

static void take_reduced(const hc_link *l, const hc_call *c, int64_t step) {
    const hc_shape *s = &c->shape;
    int64_t size = hc_nbytes_of(s->dtype), n;
    hc_span_of now = cut(s, part(c, l->rank, l->rank), step);
    const unsigned char *srcs[s->size];
    for (int64_t i = 0; i < now.n; i += n) {
        n = now.n - i < HC_BLOCK ? now.n - i : HC_BLOCK;
        for (int r = 0; r < s->size; r++) srcs[r] = sent(l, c, r) + i * size;
        hc_reduce_block(s, srcs, n, c->members[l->rank].dst + (now.at + i) * size);
    }
}

/* Where in its destination this member puts what rank `from` sends. */
static int64_t place(const hc_link *l, const hc_call *c, int from) {
    const hc_shape *s = &c->shape;
    if (s->kind == ALL_TO_ALL_V) return hc_got_before(s, c->counts, from, l->rank);
    return s->kind == ALL_GATHER || s->kind == GATHER || s->kind == ALL_TO_ALL ? from * s->count : 0;
}

static void take_parts(const hc_link *l, const hc_call *c, int64_t step) {
    const hc_shape *s = &c->shape;
    int64_t size = hc_nbytes_of(s->dtype);
    for (int from = 0; from < l->size; from++) {
        hc_span_of now = cut(s, part(c, from, l->rank), step);
        if (now.n) memcpy(c->members[l->rank].dst + (place(l, c, from) + now.at) * size, sent(l, c, from), now.n * size);
    }
}

void hc_chunk_take(const hc_link *l, const hc_call *c, int64_t step) {
    const hc_shape *s = &c->shape;
    if ((s->kind == REDUCE || s->kind == GATHER) && l->rank != s->root) return;
    if (reduces(s)) take_reduced(l, c, step);
    else take_parts(l, c, step);
}
