/* Rings of bytes in the shared segment: one for each lane, sender and receiver. */
#include "channel.h"

static int64_t room(int nlocal) { return nlocal <= 4 ? 256 << 10 : nlocal <= 16 ? 64 << 10 : 16 << 10; }

static int64_t ring_nbytes(int nlocal) { return sizeof(he_ring) + room(nlocal); }

int64_t he_rings_nbytes(int nlocal) { return (int64_t)HE_LANES * nlocal * (nlocal - 1) * ring_nbytes(nlocal); }

static he_ring *ring_of(he_group *g, int lane, int from, int to) {
    int i = g->index[from], j = g->index[to], n = g->nlocal;
    int64_t at = ((int64_t)lane * n + i) * (n - 1) + (j < i ? j : j - 1);
    return (he_ring *)(g->rings + at * ring_nbytes(n));
}

static unsigned char *bytes_of(he_ring *ring) { return (unsigned char *)(ring + 1); }

/* Wakes a rank of this host that sleeps on the lane. */
void he_ring_bell(he_group *g, int lane, int rank) {
    he_end *end = &g->ends[g->index[rank]];
    if (!__atomic_load_n(&end->asleep[lane], __ATOMIC_SEQ_CST)) return;
    __atomic_add_fetch(&end->bells[lane], 1, __ATOMIC_SEQ_CST);
    he_wake(&end->bells[lane]);
}

int64_t he_ring_put(he_group *g, int lane, int peer, const void *bytes, int64_t n) {
    he_ring *ring = ring_of(g, lane, g->rank, peer);
    int64_t all = room(g->nlocal);
    uint64_t put = __atomic_load_n(&ring->put, __ATOMIC_RELAXED);
    int64_t held = he_ring_holds(put, __atomic_load_n(&ring->taken, __ATOMIC_ACQUIRE), all), free = all - held;
    int64_t at = (int64_t)(put % (uint64_t)all), first;
    n = n < free ? n : free;
    if (held < 0) return -1;
    if (n <= 0) return 0;
    first = n < all - at ? n : all - at;
    memcpy(bytes_of(ring) + at, bytes, first);
    memcpy(bytes_of(ring), (const unsigned char *)bytes + first, n - first);
    __atomic_store_n(&ring->put, put + n, __ATOMIC_SEQ_CST);
    he_ring_bell(g, lane, peer);
    return n;
}

/* How many bytes lie at `at`, up to the ring's end. */
int64_t he_ring_peek(he_group *g, int lane, int peer, unsigned char **at) {
    he_ring *ring = ring_of(g, lane, peer, g->rank);
    int64_t all = room(g->nlocal);
    uint64_t taken = __atomic_load_n(&ring->taken, __ATOMIC_RELAXED);
    int64_t there = he_ring_holds(__atomic_load_n(&ring->put, __ATOMIC_ACQUIRE), taken, all);
    int64_t start = (int64_t)(taken % (uint64_t)all);
    *at = bytes_of(ring) + start;
    return there < all - start ? there : all - start;
}

void he_ring_take(he_group *g, int lane, int peer, int64_t n) {
    he_ring *ring = ring_of(g, lane, peer, g->rank);
    __atomic_store_n(&ring->taken, ring->taken + n, __ATOMIC_SEQ_CST);
    he_ring_bell(g, lane, peer);
}
