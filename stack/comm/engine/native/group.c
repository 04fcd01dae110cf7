/* A group's life. */
#include "message.h"
#include "peer.h"
#include <limits.h>
#include <sys/socket.h>
#include <unistd.h>

static void free_all(he_group *g) {
    for (int r = 0; r < g->size; r++)
        for (int i = 0; i < HE_SEALS; i++) he_seal_close(&g->peers[r].seals[i]);
    pthread_cond_destroy(&g->posted);
    free(g->scratch);
    for (int q = 0; g->messages && q <= 2 * g->size; q++) he_inbox_free(&g->messages[q]);
    free(g->messages);
    free(g->telling);
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->changed);
    free(g->index);
    free(g->ranks);
    free(g->in_job);
    free(g);
}

static he_group *new_group(int rank, int size, int nlocal) {
    he_group *g = calloc(1, sizeof *g + size * sizeof(he_peer));
    if (!g) return NULL;
    atomic_init(&g->refs, 1);
    g->rank = rank;
    g->size = size;
    g->nlocal = nlocal;
    g->tail = &g->queue;
    g->index = malloc(size * sizeof *g->index);
    g->ranks = malloc(size * sizeof *g->ranks);
    g->in_job = malloc(size * sizeof *g->in_job);
    pthread_mutex_init(&g->lock, NULL);
    he_cond_init(&g->changed);
    he_cond_init(&g->posted);
    g->messages = calloc(2 * (size_t)size + 1, sizeof *g->messages);
    g->telling = calloc(size, sizeof *g->telling);
    if (g->index && g->ranks && g->in_job && g->messages && g->telling) return g;
    free_all(g);
    return NULL;
}

/* `keys` are those of rank 0's connections first, LIFE before the lanes. */
static void seal(he_group *g, const unsigned char *keys) {
    for (int r = 0; r < g->size; r++) {
        const unsigned char *key = keys + r * HE_SEALS * HE_KEY_NBYTES;
        if (!g->peers[r].remote) continue;
        he_seal_init(&g->peers[r].seals[HE_LIFE], key, g->rank, r, sizeof(he_message));
        for (int lane = 0; lane < HE_LANES; lane++)
            he_seal_init(&g->peers[r].seals[lane], key + (1 + lane) * HE_KEY_NBYTES, g->rank, r, HE_RECORD_NBYTES);
    }
}

static void know_ranks(he_group *g, const int *local, const int *life, const int *data, const int *in_job) {
    for (int r = 0; r < g->size; r++) {
        g->index[r] = -1;
        g->in_job[r] = in_job ? in_job[r] : r;
        g->peers[r].life = life[r];
        g->peers[r].watcher = -1;
        for (int lane = 0; lane < 2; lane++) g->peers[r].data[lane] = data[2 * r + lane];
    }
    for (int i = 0; i < g->nlocal; i++) {
        g->ranks[i] = local[i];
        g->index[local[i]] = i;
    }
    for (int r = 0; r < g->size; r++) g->peers[r].remote = g->index[r] < 0;
    g->here = g->index[g->rank];
}

he_group *he_group_new(int rank, int size, int nlocal, const int *local, int segment, const int *life, const int *data,
                       const unsigned char *keys, int64_t heartbeat_ns, uint64_t mesh, const int *in_job) {
    he_group *g = new_group(rank, size, nlocal);
    if (!g) return NULL;
    know_ranks(g, local, life, data, in_job);
    g->mesh = mesh;
    seal(g, keys);
    g->heartbeat_ns = heartbeat_ns;
    g->beat_ns = heartbeat_ns / 4;
    for (int r = 0; r < size; r++) he_last_init(&g->peers[r].last);
    if (he_segment_map(g, segment)) {
        he_last_init(&g->ends[g->here].last);
        he_attach_offer(g);
        he_tell_cores(g);
    }
    if (g->head && g->mesh) he_bind(g);
    if (g->head && he_watch_add(g)) {
        close(segment);
        return g;
    }
    he_unbind(g);
    he_segment_unmap(g);
    free_all(g);
    return NULL;
}

/* Others hear that this rank leaves; calls that are queued still end. */
void he_group_leave(he_group *g) {
    if (atomic_load(&g->forked) || atomic_exchange(&g->away, 1)) return;
    __atomic_store_n(&g->ends[g->here].presence, HE_AWAY, __ATOMIC_SEQ_CST);
    pthread_mutex_lock(&g->lock);
    g->ending = 1;
    pthread_cond_signal(&g->changed);
    pthread_cond_signal(&g->posted);
    pthread_mutex_unlock(&g->lock);
    he_part(g);
    he_watch_wake();
}

/* Memory for the call that runs, kept for the next one; NULL without. */
unsigned char *he_scratch(he_group *g, int64_t nbytes) {
    if (nbytes <= g->nscratch) return g->scratch;
    free(g->scratch);
    g->scratch = aligned_alloc(64, (nbytes + 63) / 64 * 64);
    g->nscratch = g->scratch ? nbytes : 0;
    return g->scratch;
}

/* What others sent and nobody took is dropped first: with such bytes the end of a connection would be a reset, which
 * drops also what this rank has sent and others have not taken yet. */
static void close_data(he_group *g) {
    for (int r = 0; r < 2 * g->size; r++) {
        int data = g->peers[r / 2].data[r % 2];
        if (data < 0) continue;
        recv(data, NULL, INT_MAX, MSG_DONTWAIT | MSG_TRUNC);
        close(data);
    }
}

void he_group_release(he_group *g) {
    if (atomic_fetch_sub(&g->refs, 1) != 1) return;
    he_group_leave(g);
    he_shut(g);
    he_unbind(g);
    if (!atomic_load(&g->forked)) he_watch_remove(g);
    close_data(g);
    he_shared_close(g);
    he_segment_unmap(g);
    free_all(g);
}

/* How the rank is: HE_HERE, or the code of how it went. */
int he_state_of(he_group *g, int rank) { return atomic_load(&g->peers[rank].state); }

int64_t he_calls_of(he_group *g) { return g->sequence; }

int he_way_of(he_group *g) { return atomic_load_explicit(&g->way, memory_order_relaxed); }
