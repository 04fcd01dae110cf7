/* What a call moves where, among members whose memory is all in this process. */
#include "call.h"

#define PIECE 16384 /* elements that one worker takes at a time */

static int64_t span_of(const hc_shape *s) { /* elements that the pieces divide */
    switch (s->kind) {
    case BARRIER: return 0;
    case ALL_REDUCE: case REDUCE: case BROADCAST: return s->count;
    default: return s->count * s->size;
    }
}

static int has_scratch(const hc_call *c) {
    for (int r = 0; r < c->shape.size; r++)
        if (c->members[r].scratch) return 1;
    return 0;
}

/* A piece of ALL_TO_ALL_V is what one rank sends to another; one worker does all where copies must come first. */
int64_t hc_call_pieces(const hc_call *c) {
    if (c->shape.kind == ALL_TO_ALL_V) return has_scratch(c) ? 1 : (int64_t)c->shape.size * c->shape.size;
    int64_t n = (span_of(&c->shape) + PIECE - 1) / PIECE;
    return n > 0 ? n : 1;
}

/* Elements in `src` of rank `from` before its part for `to`. */
int64_t hc_sent_before(const hc_shape *s, const int64_t *counts, int from, int to) {
    int64_t n = 0;
    for (int r = 0; r < to; r++) n += counts[from * s->size + r];
    return n;
}

/* Elements in `dst` of rank `to` before the part from `from`. */
static int64_t got_before(const hc_shape *s, const int64_t *counts, int from, int to) {
    int64_t n = 0;
    for (int r = 0; r < from; r++) n += counts[r * s->size + to];
    return n;
}

static void put(unsigned char *dst, const unsigned char *src, int64_t nbytes) {
    if (dst != src) memcpy(dst, src, nbytes);
}

/* Elements [at, at + n) of every source, reduced into `out`. */
static void reduce_at(const hc_call *c, int64_t at, int64_t n, unsigned char *out) {
    const unsigned char *srcs[c->shape.size];
    for (int r = 0; r < c->shape.size; r++) srcs[r] = c->members[r].src + at * hc_nbytes_of(c->shape.dtype);
    hc_reduce_block(&c->shape, srcs, n, out);
}

static void reduce(hc_call *c, int64_t at, int64_t n) {
    const hc_shape *s = &c->shape;
    int64_t size = hc_nbytes_of(s->dtype);
    if (s->kind == REDUCE) reduce_at(c, at, n, c->members[s->root].dst + at * size);
    if (s->kind == REDUCE_SCATTER) /* blocks never cross from one member's part to the next */
        reduce_at(c, at, n, c->members[at / s->count].dst + at % s->count * size);
    if (s->kind != ALL_REDUCE) return;
    unsigned char *out = c->members[0].dst + at * size;
    reduce_at(c, at, n, out);
    for (int r = 1; r < s->size; r++) memcpy(c->members[r].dst + at * size, out, n * size);
}

/* Exchanges the parts that members a <= b have for each other; right also in place. */
static void exchange(hc_call *c, int64_t a, int64_t b, int64_t at, int64_t n) {
    unsigned char room[HC_BLOCK * 8];
    int64_t size = hc_nbytes_of(c->shape.dtype), count = c->shape.count;
    int64_t in_a = (b * count + at) * size, in_b = (a * count + at) * size;
    memcpy(room, c->members[a].src + in_a, n * size);
    put(c->members[a].dst + in_a, c->members[b].src + in_b, n * size);
    memcpy(c->members[b].dst + in_b, room, n * size);
}

static void move(hc_call *c, int64_t at, int64_t n) {
    hc_member *m = c->members, *root = m + c->shape.root;
    int64_t size = hc_nbytes_of(c->shape.dtype), part = at / c->shape.count, within = at % c->shape.count;
    int64_t whole_at = at * size, part_at = within * size;
    switch (c->shape.kind) {
    case BROADCAST:
        for (int r = 0; r < c->shape.size; r++) put(m[r].dst + whole_at, root->src + whole_at, n * size);
        break;
    case ALL_GATHER:
        for (int r = 0; r < c->shape.size; r++) put(m[r].dst + whole_at, m[part].src + part_at, n * size);
        break;
    case GATHER: put(root->dst + whole_at, m[part].src + part_at, n * size); break;
    case SCATTER: put(m[part].dst + part_at, root->src + whole_at, n * size); break;
    case ALL_TO_ALL:
        for (int64_t r = part; r < c->shape.size; r++) exchange(c, part, r, within, n);
        break;
    }
}

static void save_sources(hc_call *c) {
    for (int r = 0; r < c->shape.size; r++) {
        hc_member *m = &c->members[r];
        int64_t n = hc_sent_before(&c->shape, c->counts, r, c->shape.size);
        if (m->scratch) memcpy(m->scratch, m->src, n * hc_nbytes_of(c->shape.dtype));
        if (m->scratch) m->src = m->scratch;
    }
}

static void move_pairs(hc_call *c, int64_t begin, int64_t end) {
    const hc_shape *s = &c->shape;
    int64_t size = hc_nbytes_of(s->dtype);
    for (int64_t pair = begin; pair < end; pair++) {
        int from = (int)(pair / s->size), to = (int)(pair % s->size);
        memcpy(c->members[to].dst + got_before(s, c->counts, from, to) * size,
               c->members[from].src + hc_sent_before(s, c->counts, from, to) * size, c->counts[pair] * size);
    }
}

static void move_unequal(hc_call *c, int64_t begin, int64_t end) {
    if (!has_scratch(c)) {
        move_pairs(c, begin, end);
        return;
    }
    save_sources(c);
    move_pairs(c, 0, (int64_t)c->shape.size * c->shape.size);
}

void hc_call_run(hc_call *c, int64_t begin, int64_t end) {
    int64_t span = span_of(&c->shape), last = end * PIECE < span ? end * PIECE : span, n;
    int kind = c->shape.kind, reduces = kind == ALL_REDUCE || kind == REDUCE || kind == REDUCE_SCATTER;
    if (kind == ALL_TO_ALL_V) {
        move_unequal(c, begin, end);
        return;
    }
    for (int64_t at = begin * PIECE; at < last; at += n) {
        int64_t left_of_part = c->shape.count - at % c->shape.count;
        n = last - at < HC_BLOCK ? last - at : HC_BLOCK;
        if (n > left_of_part) n = left_of_part;
        if (reduces) reduce(c, at, n);
        else move(c, at, n);
    }
}
