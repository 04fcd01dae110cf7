/* A collective whose memory all ranks map: nothing is copied but from where it is to where it goes. Ranks
 * reduce pieces of all sources and write them to all destinations, or read their parts in the others' sources. */
#include "engine.h"

#define PIECE_NBYTES (64LL << 10)

static const he_said *said_by(const he_group *g, int rank, uint32_t number) { return &he_step_slot_of(g, rank, number)->said; }

static int whole(int kind) { return kind == HE_ALL_REDUCE || kind == HE_REDUCE; }

static int writes(const he_work *w, int rank) { return w->call.kind == HE_ALL_REDUCE || rank == w->call.root; }

/* Whether all ranks told places that the others can map, for all that others will read or write. */
int he_direct(const he_group *g, const he_work *w, uint32_t number) {
    int kind = w->call.kind;
    if (kind == HE_BARRIER) return 0;
    for (int r = 0; r < g->size; r++) {
        int reads = kind != HE_BROADCAST && kind != HE_SCATTER;
        if ((reads || r == w->call.root) && !said_by(g, r, number)->src.id) return 0;
        if (whole(kind) && writes(w, r) && !said_by(g, r, number)->dst.id) return 0;
    }
    return 1;
}

/* The bytes from the start of a rank's source to the end of what this rank reads of it. */
static int64_t read_nbytes(const he_group *g, const he_work *w, int rank) {
    int64_t count = whole(w->call.kind) ? w->call.count : he_part_count(g, w, rank, g->rank);
    int64_t at = whole(w->call.kind) ? 0 : he_part_in_src(g, w, rank, g->rank);
    return count ? (at + count) * he_nbytes_of(w->call.dtype) : 0;
}

static int map_all(he_group *g, const he_work *w, uint32_t number, unsigned char **srcs, unsigned char **dsts) {
    for (int r = 0; r < g->size; r++) {
        const he_said *said = said_by(g, r, number);
        he_place src = said->src, dst = said->dst;
        srcs[r] = src.id ? he_mapped(g, w, r, src, read_nbytes(g, w, r)) : NULL;
        dsts[r] = dst.id ? he_mapped(g, w, r, dst, writes(w, r) ? w->call.count * he_nbytes_of(w->call.dtype) : 0) : NULL;
        if ((src.id && !srcs[r]) || (dst.id && !dsts[r])) return he_look(g);
    }
    return HE_OK;
}

static void reduce_block(const he_group *g, const he_work *w, unsigned char **srcs, unsigned char **dsts, int64_t i, int64_t n) {
    int64_t size = he_nbytes_of(w->call.dtype);
    _Alignas(64) unsigned char room[HE_BLOCK * 8];
    const unsigned char *from[g->size];
    for (int r = 0; r < g->size; r++) from[r] = srcs[r] + i * size;
    he_reduce_block(w->call.dtype, w->call.reduce, g->size, from, n, room);
    for (int r = 0; r < g->size; r++) {
        if (!writes(w, r)) continue;
        if (dsts[r] == srcs[r] || w->call.count * size < STREAM_NBYTES) memcpy(dsts[r] + i * size, room, n * size);
        else he_stream(dsts[r] + i * size, room, n * size);
    }
}

/* The next piece of call `number` that nobody has taken yet. All have come to the call before one takes a piece, so no
 * one still takes pieces of another call. */
static int64_t claim(he_group *g, uint32_t number) {
    uint64_t next, seen = __atomic_load_n(&g->head->pieces, __ATOMIC_RELAXED);
    do next = seen >> 32 == number ? seen + 1 : ((uint64_t)number << 32) + 1;
    while (!__atomic_compare_exchange_n(&g->head->pieces, &seen, next, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return (int64_t)(uint32_t)next - 1;
}

/* Whoever has time takes the next piece: a rank that has to wait for its core holds the others up but by one. */
static int reduce_pieces(he_group *g, const he_work *w, uint32_t number, unsigned char **srcs, unsigned char **dsts) {
    int64_t count = w->call.count, piece = PIECE_NBYTES / he_nbytes_of(w->call.dtype), n;
    for (int64_t begin; (begin = claim(g, number) * piece) >= 0 && begin < count;) {
        if (atomic_load(&g->failed)) return he_look(g);
        int64_t end = begin + piece < count ? begin + piece : count;
        for (int64_t i = begin; i < end; i += n) {
            n = end - i < HE_BLOCK ? end - i : HE_BLOCK;
            reduce_block(g, w, srcs, dsts, i, n);
        }
    }
    return HE_OK;
}

static void reduce_own(const he_group *g, const he_work *w, unsigned char **srcs) {
    int64_t count = he_part_count(g, w, 0, g->rank), at = he_part_in_src(g, w, 0, g->rank), n;
    int64_t size = he_nbytes_of(w->call.dtype);
    const unsigned char *from[g->size];
    for (int64_t i = 0; i < count; i += n) {
        n = count - i < HE_BLOCK ? count - i : HE_BLOCK;
        for (int r = 0; r < g->size; r++) from[r] = srcs[r] + (at + i) * size;
        he_reduce_block(w->call.dtype, w->call.reduce, g->size, from, n, w->dst + i * size);
    }
}

static void pull(const he_group *g, const he_work *w, unsigned char **srcs) {
    int64_t size = he_nbytes_of(w->call.dtype);
    for (int k = 0; k < g->size; k++) {
        int r = (g->rank + k) % g->size; /* so that not all read from the same one */
        int64_t n = he_part_count(g, w, r, g->rank);
        unsigned char *dst = w->dst + he_part_in_dst(g, w, r, g->rank) * size;
        unsigned char *src = n ? srcs[r] + he_part_in_src(g, w, r, g->rank) * size : dst;
        if (src == dst || (r == g->rank && w->src + he_part_in_src(g, w, r, r) * size == dst)) continue;
        if (n * size < STREAM_NBYTES) memcpy(dst, src, n * size);
        else he_stream(dst, src, n * size);
    }
}

int he_run_direct(he_group *g, const he_work *w, uint32_t number) {
    unsigned char *srcs[g->size], *dsts[g->size];
    int code = map_all(g, w, number, srcs, dsts);
    if (code) return code;
    if (whole(w->call.kind)) code = reduce_pieces(g, w, number, srcs, dsts);
    else if (he_reduces(w->call.kind)) reduce_own(g, w, srcs);
    else pull(g, w, srcs);
    if (code) return code;
    he_post(g); /* nobody may change its memory before all have read it */
    return he_await_all(g, w, g->posts - 1);
}
