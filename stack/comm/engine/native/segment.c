/* The memory that a group's ranks of one host share: a head, an end for each, slots, and rings. */
#include "channel.h"
#include <sys/mman.h>

static size_t ends_nbytes(int nlocal) { return (sizeof(he_head) + nlocal * sizeof(he_end) + 4095) / 4096 * 4096; }

static size_t slots_nbytes(int n) { return n * (STEP_SLOTS * sizeof(he_step_slot) + CHUNK_SLOTS * sizeof(he_chunk_slot)); }

int64_t he_segment_nbytes(int nlocal, int size) {
    return (int64_t)(ends_nbytes(nlocal) + (nlocal == size ? slots_nbytes(size) : 0)) + he_rings_nbytes(nlocal);
}

/* Takes part in the memory of `fd`. 0 when it does not fit, or this process has no room for it. */
int he_segment_map(he_group *g, int fd) {
    g->nbytes = he_segment_nbytes(g->nlocal, g->size);
    void *memory = mmap(NULL, g->nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return 0;
    g->head = memory;
    g->ends = (he_end *)(g->head + 1);
    g->rings = (unsigned char *)memory + g->nbytes - he_rings_nbytes(g->nlocal);
    if (g->nlocal != g->size) return 1;
    g->steps = (he_step_slot *)((char *)memory + ends_nbytes(g->nlocal));
    g->chunks = (he_chunk_slot *)(g->steps + g->size * STEP_SLOTS);
    return 1;
}

void he_segment_unmap(he_group *g) {
    if (g->head) munmap(g->head, g->nbytes);
    g->head = NULL;
}
