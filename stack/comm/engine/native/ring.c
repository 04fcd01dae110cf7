/* Rings of bytes in the shared segment: one for each lane, sender and receiver. */
#include "channel.h"

static int64_t room(int nlocal) { return nlocal <= 2 ? 1 << 20 : nlocal <= 4 ? 256 << 10 : nlocal <= 16 ? 64 << 10 : 16 << 10; }

static int64_t ring_nbytes(int nlocal) { return sizeof(he_ring) + room(nlocal); }

int64_t he_rings_nbytes(int nlocal) { return (int64_t)HE_LANES * nlocal * (nlocal - 1) * ring_nbytes(nlocal); }

static he_ring *ring_of(he_group *g, int lane, int from, int to) {
    int i = g->index[from], j = g->index[to], n = g->nlocal;
    int64_t at = ((int64_t)lane * n + i) * (n - 1) + (j < i ? j : j - 1);
    return (he_ring *)(g->rings + at * ring_nbytes(n));
}

static unsigned char *bytes_of(he_ring *ring) { return (unsigned char *)(ring + 1); }

/* Of messages between two ranks of this host. */
he_loan *he_loan_of(he_group *g, int from, int to) { return &ring_of(g, HE_MESSAGES, from, to)->loan; }

/* Wakes a rank of this host that sleeps on the lane. */
void he_ring_bell(he_group *g, int lane, int rank) {
    he_end *end = &g->ends[g->index[rank]];
    if (!__atomic_load_n(&end->asleep[lane], __ATOMIC_SEQ_CST)) return;
    __atomic_add_fetch(&end->bells[lane], 1, __ATOMIC_SEQ_CST);
    he_wake(&end->bells[lane]);
}

int64_t he_ring_put(he_group *g, int lane, int peer, const he_piece *pieces, int count) {
    he_ring *ring = ring_of(g, lane, g->rank, peer);
    uint64_t *taken = &g->peers[peer].taken[lane], put = __atomic_load_n(&ring->put, __ATOMIC_RELAXED);
    int64_t all = room(g->nlocal), wanted = 0, done = 0, held = he_ring_holds(put, *taken, all);
    for (int i = 0; i < count; i++) wanted += pieces[i].nbytes;
    if (held < 0 || all - held < wanted) { /* than is known to be free */
        uint64_t now = __atomic_load_n(&ring->taken, __ATOMIC_ACQUIRE);
        if ((held = he_ring_holds(put, now, all)) < 0) return -1;
        *taken = now;
    }
    for (int i = 0; i < count && done < all - held; i++) {
        int64_t n = pieces[i].nbytes, free = all - held - done, at = (int64_t)((put + done) % (uint64_t)all), first;
        n = n < free ? n : free;
        first = n < all - at ? n : all - at;
        he_near(bytes_of(ring) + at, pieces[i].at, first);
        he_near(bytes_of(ring), (const unsigned char *)pieces[i].at + first, n - first);
        done += n;
    }
    if (!done) return 0;
    __atomic_store_n(&ring->put, put + done, __ATOMIC_SEQ_CST);
    he_ring_bell(g, lane, peer);
    return done;
}

/* Whether more has come than was seen. */
int he_ring_has(he_group *g, int lane, int peer) {
    return __atomic_load_n(&ring_of(g, lane, peer, g->rank)->put, __ATOMIC_RELAXED) != g->peers[peer].put[lane];
}

/* How many bytes lie at `at`, up to the ring's end. */
int64_t he_ring_peek(he_group *g, int lane, int peer, unsigned char **at) {
    he_ring *ring = ring_of(g, lane, peer, g->rank);
    uint64_t *put = &g->peers[peer].put[lane], taken = __atomic_load_n(&ring->taken, __ATOMIC_RELAXED);
    int64_t all = room(g->nlocal), there = he_ring_holds(*put, taken, all);
    int64_t start = (int64_t)(taken % (uint64_t)all);
    if (there < HE_FRAME_NBYTES) { /* of what is known to be there */
        uint64_t now = __atomic_load_n(&ring->put, __ATOMIC_ACQUIRE);
        if ((there = he_ring_holds(now, taken, all)) < 0) return -1;
        *put = now;
    }
    *at = bytes_of(ring) + start;
    return there < all - start ? there : all - start;
}

void he_ring_take(he_group *g, int lane, int peer, int64_t n) {
    he_ring *ring = ring_of(g, lane, peer, g->rank);
    __atomic_store_n(&ring->taken, ring->taken + n, __ATOMIC_SEQ_CST);
    he_ring_bell(g, lane, peer);
}
