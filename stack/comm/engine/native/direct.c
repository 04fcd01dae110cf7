/* A collective whose memory all ranks map: nothing is copied but from where it is to where it goes. Ranks
 * reduce pieces of all sources and write them to all destinations, or read their parts in the others' sources. */
#include "engine.h"

#define DEALT_NBYTES (512LL << 10) /* from here on two ranks copy sooner than one */

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

static int spread(const he_group *g, const he_work *w, uint32_t number) {
    int64_t most = 0;
    for (int r = 0; r < g->size; r++) {
        int64_t n = he_part_count(g, w, r, g->rank);
        if (n > most) most = n;
        if (!said_by(g, r, number)->dst.id) return 0;
    }
    return most * he_nbytes_of(w->call.dtype) >= STREAM_NBYTES;
}

/* Whether ranks help each other to copy, where all told where it goes: one of them has it all to send or to take; or all want the
 * same of each, which no cache keeps until the next one reads it. */
static int dealt(const he_group *g, const he_work *w, uint32_t number) {
    int kind = w->call.kind;
    if (kind == HE_ALL_GATHER) return spread(g, w, number);
    if (!he_is_rooted(kind) || whole(kind)) return 0;
    int64_t most = 0;
    for (int r = 0; r < g->size; r++) {
        int64_t n = he_part_count(g, w, w->call.root, r) + he_part_count(g, w, r, w->call.root);
        if (n > most) most = n;
        int takes = kind == HE_GATHER ? r == w->call.root : r != w->call.root;
        if (takes && !said_by(g, r, number)->dst.id) return 0;
    }
    return most * he_nbytes_of(w->call.dtype) >= DEALT_NBYTES;
}

static int64_t later(int64_t end, int64_t at, int64_t count) { return count && at + count > end ? at + count : end; }

/* The bytes from the start of a rank's source to the end of what is read of it, by this rank or by whoever helps. */
static int64_t read_nbytes(const he_group *g, const he_work *w, int rank, int helped) {
    int64_t end = whole(w->call.kind) ? w->call.count : 0;
    for (int to = 0; to < g->size && !whole(w->call.kind); to++)
        if (helped || to == g->rank) end = later(end, he_part_in_src(g, w, rank, to), he_part_count(g, w, rank, to));
    return end * he_nbytes_of(w->call.dtype);
}

/* The same of its destination and of what others than the rank itself write there. */
static int64_t written_nbytes(const he_group *g, const he_work *w, int rank, int helped) {
    int64_t end = whole(w->call.kind) && writes(w, rank) ? w->call.count : 0;
    for (int from = 0; from < g->size && helped; from++)
        end = later(end, he_part_in_dst(g, w, from, rank), he_part_count(g, w, from, rank));
    return end * he_nbytes_of(w->call.dtype);
}

static int map_all(he_group *g, const he_work *w, uint32_t number, int helped, unsigned char **srcs, unsigned char **dsts) {
    for (int r = 0; r < g->size; r++) {
        const he_said *said = said_by(g, r, number);
        he_place src = said->src, dst = said->dst;
        int64_t written = written_nbytes(g, w, r, helped);
        srcs[r] = src.id ? he_mapped(g, w, r, src, read_nbytes(g, w, r, helped)) : NULL;
        dsts[r] = dst.id && written ? he_mapped(g, w, r, dst, written) : NULL;
        if ((src.id && !srcs[r]) || (dst.id && written && !dsts[r])) return he_look(g);
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
        he_copy(dsts[r] + i * size, room, n * size, dsts[r] == srcs[r] ? 0 : w->call.count * size);
    }
}

int64_t he_claim(uint64_t *pieces, uint32_t number) {
    uint64_t next, seen = __atomic_load_n(pieces, __ATOMIC_RELAXED);
    do next = seen >> 32 == number ? seen + 1 : ((uint64_t)number << 32) + 1;
    while (!__atomic_compare_exchange_n(pieces, &seen, next, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return (int64_t)(uint32_t)next - 1;
}

/* Whoever has time takes the next piece: a rank that has to wait for its core holds the others up but by one. */
static int reduce_pieces(he_group *g, const he_work *w, uint32_t number, unsigned char **srcs, unsigned char **dsts) {
    int64_t count = w->call.count, piece = PIECE_NBYTES / he_nbytes_of(w->call.dtype), n;
    for (int64_t begin; (begin = he_claim(&g->head->pieces, number) * piece) >= 0 && begin < count;) {
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

static void pull_from(const he_group *g, const he_work *w, int r, unsigned char **srcs) {
    int64_t size = he_nbytes_of(w->call.dtype), n = he_part_count(g, w, r, g->rank);
    unsigned char *dst = w->dst + he_part_in_dst(g, w, r, g->rank) * size;
    unsigned char *src = n ? srcs[r] + he_part_in_src(g, w, r, g->rank) * size : dst;
    if (src == dst || (r == g->rank && w->src + he_part_in_src(g, w, r, r) * size == dst)) return;
    he_copy(dst, src, n * size, n * size);
}

static void pull(const he_group *g, const he_work *w, unsigned char **srcs) {
    for (int k = 0; k < g->size; k++) pull_from(g, w, (g->rank + k) % g->size, srcs); /* not all from the same one */
}

/* Whether it is copied by whoever has time. What a root has for itself need not lie where others find it. */
static int64_t dealt_nbytes(const he_group *g, const he_work *w, int from, int to) {
    if (he_is_rooted(w->call.kind) && from == to) return 0;
    return he_part_count(g, w, from, to) * he_nbytes_of(w->call.dtype);
}

/* Bytes [at, at + n) of the part that `from` has for each of `to` up to `end`: what goes past the cache to two at a time. */
static void copy_piece(const he_group *g, const he_work *w, int from, int to, int end, unsigned char **srcs, unsigned char **dsts,
                       int64_t at, int64_t n) {
    int64_t size = he_nbytes_of(w->call.dtype), nbytes;
    const unsigned char *src = srcs[from] + he_part_in_src(g, w, from, to) * size + at;
    unsigned char *first = NULL;
    for (; to < end; to++) {
        if (!(nbytes = dealt_nbytes(g, w, from, to))) continue;
        unsigned char *dst = dsts[to] + he_part_in_dst(g, w, from, to) * size + at;
        if (src == dst) continue;
        if (nbytes < STREAM_NBYTES) {
            he_copy(dst, src, n, nbytes);
        } else if (first) {
            he_stream_to_both(first, dst, src, n);
            first = NULL;
        } else {
            first = dst;
        }
    }
    if (first) he_stream(first, src, n);
}

/* That part by pieces that whoever has time takes; `first` is the number of its first one, and that of the next part's then;
 * `mine` that of the one that this rank has taken. */
static int copy_part(he_group *g, const he_work *w, uint32_t number, int from, int to, int end, unsigned char **srcs,
                     unsigned char **dsts, int64_t *first, int64_t *mine) {
    int64_t nbytes = 0;
    for (int r = to; r < end && !nbytes; r++) nbytes = dealt_nbytes(g, w, from, r);
    for (int64_t at; (at = (*mine - *first) * PIECE_NBYTES) < nbytes; *mine = he_claim(&g->head->pieces, number)) {
        if (atomic_load(&g->failed)) return he_look(g);
        copy_piece(g, w, from, to, end, srcs, dsts, at, nbytes - at < PIECE_NBYTES ? nbytes - at : PIECE_NBYTES);
    }
    *first += (int64_t)he_pieces_of(nbytes);
    return HE_OK;
}

static int copy_dealt(he_group *g, const he_work *w, uint32_t number, unsigned char **srcs, unsigned char **dsts) {
    int64_t first = 0, mine = he_claim(&g->head->pieces, number);
    int at_once = he_for_each(w->call.kind) ? 1 : g->size, code = HE_OK; /* else all take the same */
    if (he_is_rooted(w->call.kind) && g->rank == w->call.root) pull_from(g, w, g->rank, srcs);
    for (int from = 0; from < g->size; from++)
        for (int to = 0; to < g->size && !code; to += at_once)
            code = copy_part(g, w, number, from, to, to + at_once, srcs, dsts, &first, &mine);
    return code;
}

int he_run_direct(he_group *g, const he_work *w, uint32_t number) {
    unsigned char *srcs[g->size], *dsts[g->size];
    int helped = dealt(g, w, number), code = map_all(g, w, number, helped, srcs, dsts);
    if (code) return code;
    if (helped) code = copy_dealt(g, w, number, srcs, dsts);
    else if (whole(w->call.kind)) code = reduce_pieces(g, w, number, srcs, dsts);
    else if (he_reduces(w->call.kind)) reduce_own(g, w, srcs);
    else pull(g, w, srcs);
    if (code) return code;
    he_post(g); /* nobody may change its memory before all have read it */
    return he_await_all(g, w, g->posts - 1);
}
