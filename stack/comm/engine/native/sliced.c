/* A large HE_ALL_REDUCE or HE_REDUCE of private memory, chunk by chunk in three stages. Each rank shows the parts of
 * its chunk that others reduce; reduces its own slice of the chunk and shows that; takes the other slices. The
 * stages of neighbouring chunks overlap, so that a rank that is a little late holds nobody up:
 *
 *     show 0 | show 1, reduce 0 | show 2, reduce 1, take 0 | show 3, reduce 2, take 1 | ...
 *
 * A rank shows chunk k + 1 once all have reduced chunk k - 2, hence taken chunk k - 4: so six slots are enough. */
#include "engine.h"

#define TOLD_NBYTES (32LL << 10) /* what a root shows at a time */
#define TOLD_AHEAD 16            /* pieces that nobody has taken yet; a few slots have room for them */

typedef struct {
    int64_t at, n, slice; /* elements of the chunk; the first one's place; elements of a slice */
} he_chunk;

static int64_t unit(const he_work *w) { return CHUNK_NBYTES / he_nbytes_of(w->call.dtype); }

static he_chunk chunk_of(const he_group *g, const he_work *w, int64_t k) {
    int64_t at = k * unit(w), left = w->call.count - at, n = left < unit(w) ? left : unit(w);
    return (he_chunk){at, n, ((n + g->size - 1) / g->size + 15) / 16 * 16};
}

static int64_t begin_of(const he_chunk *c, int rank) { return rank * c->slice < c->n ? rank * c->slice : c->n; }

static void show(he_group *g, const he_work *w, int64_t k) {
    he_chunk c = chunk_of(g, w, k);
    int64_t size = he_nbytes_of(w->call.dtype), own = begin_of(&c, g->rank), next = begin_of(&c, g->rank + 1);
    unsigned char *slot = he_chunk_slot_of(g, g->rank, g->chunk_number + k)->data;
    const unsigned char *src = w->src + c.at * size;
    he_near(slot, src, own * size);
    he_near(slot + next * size, src + next * size, (c.n - next) * size);
}

static int keeps(const he_group *g, const he_work *w) { return w->call.kind == HE_ALL_REDUCE || g->rank == w->call.root; }

/* Into the destination, which the source has brought into the cache if they are the same. */
static void put(const he_work *w, int64_t at, const unsigned char *from, int64_t n) {
    int64_t size = he_nbytes_of(w->call.dtype);
    he_copy(w->dst + at * size, from, n * size, w->dst == w->src ? 0 : w->call.count * size);
}

static void reduce_block(he_group *g, const he_work *w, int64_t k, int64_t from, int64_t i, int64_t n) {
    int64_t size = he_nbytes_of(w->call.dtype);
    unsigned char *shown = he_chunk_slot_of(g, g->rank, g->chunk_number + k)->data + i * size;
    const unsigned char *srcs[g->size];
    for (int r = 0; r < g->size; r++)
        srcs[r] = r == g->rank ? w->src + (from + i) * size : he_chunk_slot_of(g, r, g->chunk_number + k)->data + i * size;
    he_reduce_block(w->call.dtype, w->call.reduce, g->size, srcs, n, shown);
    if (keeps(g, w)) put(w, from + i, shown, n);
}

static void reduce(he_group *g, const he_work *w, int64_t k) {
    he_chunk c = chunk_of(g, w, k);
    int64_t end = begin_of(&c, g->rank + 1), n;
    for (int64_t i = begin_of(&c, g->rank); i < end; i += n) {
        n = end - i < HE_BLOCK ? end - i : HE_BLOCK;
        reduce_block(g, w, k, c.at, i, n);
    }
}

static void take(he_group *g, const he_work *w, int64_t k) {
    he_chunk c = chunk_of(g, w, k);
    int64_t size = he_nbytes_of(w->call.dtype);
    for (int r = 0; keeps(g, w) && r < g->size; r++) {
        int64_t i = begin_of(&c, r), n = begin_of(&c, r + 1) - i;
        if (r != g->rank && n) put(w, c.at + i, he_chunk_slot_of(g, r, g->chunk_number + k)->data + i * size, n);
    }
}

/* Where the root shows piece k: in few places again and again, which stay in its cache. */
static unsigned char *piece_of(const he_group *g, int root, int64_t k) {
    int64_t each = CHUNK_NBYTES / TOLD_NBYTES, place = k % TOLD_AHEAD;
    return he_chunk_slot_of(g, root, (uint32_t)(place / each))->data + place % each * TOLD_NBYTES;
}

/* A large HE_BROADCAST of private memory: the root shows piece after piece, each of which is a post of all ranks: of the root
 * when it is shown, of others when it is taken. */
static int broadcast(he_group *g, const he_work *w) {
    int64_t nbytes = w->call.count * he_nbytes_of(w->call.dtype), all = (nbytes + TOLD_NBYTES - 1) / TOLD_NBYTES;
    uint32_t first = g->posts;
    int code = HE_OK, root = w->call.root;
    for (int64_t k = 0; k < all; k++) {
        int64_t at = k * TOLD_NBYTES, n = nbytes - at < TOLD_NBYTES ? nbytes - at : TOLD_NBYTES;
        if (g->rank == root) {
            if (k >= TOLD_AHEAD && (code = he_await_all(g, w, first + k - TOLD_AHEAD))) break;
            he_near(piece_of(g, root, k), w->src + at, n);
        } else {
            if ((code = he_await(g, w, g->index[root], first + k))) break;
            he_near(w->dst + at, piece_of(g, root, k), n);
        }
        he_post(g);
    }
    return code;
}

int he_run_sliced(he_group *g, const he_work *w) {
    if (w->call.kind == HE_BROADCAST) return broadcast(g, w);
    int64_t chunks = (w->call.count + unit(w) - 1) / unit(w);
    uint32_t first = g->posts; /* the posts: show 0, show 1, reduce 0, show 2, reduce 1, ..., reduce of the last */
    int code = HE_OK;
    show(g, w, 0);
    he_post(g);
    for (int64_t k = 0; k < chunks && !code; k++) {
        if (k + 1 < chunks) show(g, w, k + 1);
        he_post(g);
        if ((code = he_await_all(g, w, first + (k ? 2 * k - 1 : 0)))) break;
        reduce(g, w, k);
        he_post(g);
        if (k && !(code = he_await_all(g, w, first + 2 * k))) take(g, w, k - 1);
    }
    if (!code && !(code = he_await_all(g, w, first + 2 * chunks))) take(g, w, chunks - 1);
    g->chunk_number += chunks;
    return code;
}
