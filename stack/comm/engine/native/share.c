/* Memory of a rank that all ranks of its host map. Its owner tells the others over their connections, which carry the
 * descriptor; a rank that is told of a place before the memory has come waits for it. */
#include "peer.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define PART_NBYTES (64LL << 20)
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static void *map(int fd, int64_t nbytes) {
    void *memory = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static void put(he_group *g, he_shared **list, he_shared *shared) {
    pthread_mutex_lock(&g->lock);
    shared->next = *list;
    *list = shared;
    pthread_mutex_unlock(&g->lock);
}

static void *take_out(he_group *g, he_shared **list, int64_t id, const void *memory, int64_t *nbytes, int64_t *found) {
    pthread_mutex_lock(&g->lock);
    while (*list && (*list)->id != id && (*list)->memory != memory) list = &(*list)->next;
    he_shared *shared = *list;
    if (shared) *list = shared->next;
    pthread_mutex_unlock(&g->lock);
    if (!shared) return NULL;
    void *at = shared->memory;
    *nbytes = shared->nbytes;
    *found = shared->id;
    free(shared);
    return at;
}

static int allocate(int fd, int64_t nbytes) {
    for (int64_t at = 0, n; at < nbytes; at += n) {
        n = nbytes - at < PART_NBYTES ? nbytes - at : PART_NBYTES;
        if (nbytes - at > he_memory_left() || posix_fallocate(fd, at, n)) return 0;
    }
    return 1;
}

/* Fixed in size, so that nobody can take it away from under another; allocated now, so that no access fails later. */
static int new_memory(int64_t nbytes) {
    int fd = memfd_create("hal-shared", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return -1;
    if (allocate(fd, nbytes) && !fcntl(fd, F_ADD_SEALS, SEALS)) return fd;
    close(fd);
    return -1;
}

static void tell_all(he_group *g, int type, int64_t id, int64_t nbytes, int fd) {
    he_message message = {.type = type, .id = id, .nbytes = nbytes};
    for (int i = 0; i < g->nlocal; i++)
        if (i != g->here) he_peer_send(g, g->ranks[i], &message, fd);
}

static void *share(he_group *g, int fd, int64_t nbytes) {
    he_shared *own = calloc(1, sizeof *own);
    unsigned char *memory = own ? map(fd, nbytes) : NULL;
    if (!memory) {
        free(own);
        return NULL;
    }
    *own = (he_shared){.nbytes = nbytes, .memory = memory};
    own->id = atomic_fetch_add(&g->next_id, 1) + 1;
    put(g, &g->own, own);
    tell_all(g, HE_SHARE, own->id, nbytes, fd);
    return memory;
}

void *he_share(he_group *g, int64_t nbytes) {
    int fd = new_memory(nbytes);
    if (fd < 0) return NULL;
    void *memory = share(g, fd, nbytes);
    close(fd);
    return memory;
}

void he_unshare(he_group *g, void *memory) {
    int64_t nbytes, id;
    if (!take_out(g, &g->own, 0, memory, &nbytes, &id)) return;
    if (!atomic_load(&g->forked)) tell_all(g, HE_UNSHARE, id, 0, -1);
    munmap(memory, nbytes);
}

/* Where others find this memory; {0, 0} when it is private. */
he_place he_place_of(he_group *g, const void *memory) {
    he_place place = {0, 0};
    const unsigned char *at = memory;
    pthread_mutex_lock(&g->lock);
    for (he_shared *s = g->own; s; s = s->next)
        if (at >= s->memory && at < s->memory + s->nbytes) place = (he_place){s->id, at - s->memory};
    pthread_mutex_unlock(&g->lock);
    return place;
}

/* Where the place is; `*fits` says whether so many bytes of it are in the memory. */
static unsigned char *find(he_group *g, int rank, he_place place, int64_t needed, int *fits) {
    unsigned char *at = NULL;
    pthread_mutex_lock(&g->lock);
    for (he_shared *s = rank == g->rank ? g->own : g->peers[rank].shared; s; s = s->next)
        if (s->id == place.id) {
            *fits = he_place_fits(place, s->nbytes, needed);
            at = *fits ? s->memory + place.at : s->memory;
        }
    pthread_mutex_unlock(&g->lock);
    return at;
}

/* `needed` bytes of a rank's memory in this process. NULL before it has come, and where they are not in it: then `*code` is
 * the failure of the group. */
unsigned char *he_found(he_group *g, int rank, he_place place, int64_t needed, int *code) {
    int fits = place.id > 0;
    unsigned char *at = fits ? find(g, rank, place, needed, &fits) : NULL;
    if (!fits) *code = he_nonsense(g, rank, HE_WRONG_MEMORY);
    return fits ? at : NULL;
}

/* The same once it has come. NULL when the group fails before. */
unsigned char *he_mapped(he_group *g, const he_work *w, int rank, he_place place, int64_t needed) {
    int64_t until_ns = he_now() + w->timeout_ns;
    int code = HE_OK;
    unsigned char *at;
    while (!(at = he_found(g, rank, place, needed, &code))) {
        if (code || he_look(g)) return NULL;
        if (he_now() > until_ns) {
            he_fail(g, HE_LATE, rank, g->rank, &w->call, &w->call, 0);
            return NULL;
        }
        struct timespec moment = {0, 50000};
        nanosleep(&moment, NULL);
    }
    return at;
}

static int is_known(he_group *g, int rank, int64_t id) {
    pthread_mutex_lock(&g->lock);
    he_shared *s = g->peers[rank].shared;
    while (s && s->id != id) s = s->next;
    pthread_mutex_unlock(&g->lock);
    return s != NULL;
}

/* A rank told of its memory; the descriptor stays the caller's. One that could shrink, or is smaller than it is said to
 * be, is not touched, as an access could end this process: HE_WRONG_MEMORY. */
int he_shared_arrived(he_group *g, int rank, int64_t id, int64_t nbytes, int fd) {
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS || lseek(fd, 0, SEEK_END) < nbytes || is_known(g, rank, id)) return HE_WRONG_MEMORY;
    he_shared *shared = calloc(1, sizeof *shared);
    unsigned char *memory = shared ? map(fd, nbytes) : NULL;
    if (!memory) {
        free(shared);
        he_fail(g, HE_NO_MEMORY, g->rank, g->rank, NULL, NULL, 0);
        return 0;
    }
    *shared = (he_shared){.id = id, .nbytes = nbytes, .memory = memory};
    put(g, &g->peers[rank].shared, shared);
    return 0;
}

/* In a group that has failed others may still be in the call that this rank is out of: what they use stays mapped until
 * the group is released. The rank tells its failure before it frees anything. */
int he_shared_gone(he_group *g, int rank, int64_t id) {
    if (atomic_load(&g->failed) || __atomic_load_n(&g->ends[g->index[rank]].failed, __ATOMIC_ACQUIRE)) return 0;
    int64_t nbytes, found;
    void *memory = take_out(g, &g->peers[rank].shared, id, NULL, &nbytes, &found);
    if (!memory) return HE_WRONG_MEMORY;
    munmap(memory, nbytes);
    return 0;
}

static void unmap_all(he_shared **list) {
    for (he_shared *s = *list, *next; s; s = next) {
        next = s->next;
        munmap(s->memory, s->nbytes);
        free(s);
    }
    *list = NULL;
}

/* Nobody uses the group any more. */
void he_shared_close(he_group *g) {
    unmap_all(&g->own);
    for (int r = 0; r < g->size; r++) unmap_all(&g->peers[r].shared);
}
