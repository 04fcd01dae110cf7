/* A collective of private memory that the kernel lets ranks of this host reach in each other (cross-memory attach): each
 * takes what it needs out of the others' sources, so all need to wait for each other but once. What a root has for others, or
 * they for it, both sides copy: two cores move a large array nearly twice as fast as one. Whether the
 * kernel allows it is tried, once all are there for the first time, and told with each later call. */
#include "channel.h"
#include <errno.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define WINDOW_NBYTES (128LL << 10) /* what is read of a source at a time, so that it is still in the cache when it is reduced */
#define MOST_NBYTES (1LL << 30)
#define PAGE_NBYTES 4096
#define BEHIND_NBYTES 32   /* a destination that lies less than so far behind its source within a page */
#define SHUT (1u << 31)    /* of `visits`: there may be no more */
#define SHUT_NS 1000000000 /* for who is at it: far longer than a visit takes, unless its process is stopped */

static const he_said *said_by(const he_group *g, int rank, uint32_t number) { return &he_step_slot_of(g, rank, number)->said; }

/* The process of a rank, as this one's kernel calls it; 0 where it cannot see it. */
static pid_t process_of(he_group *g, int rank) {
    struct ucred who = {0};
    socklen_t length = sizeof who;
    he_watch_hold();
    int error = getsockopt(g->peers[rank].life, SOL_SOCKET, SO_PEERCRED, &who, &length);
    he_watch_let_go();
    return error ? 0 : who.pid;
}

static int read_once(pid_t process, uint64_t from, void *to, int64_t nbytes) {
    struct iovec mine = {to, nbytes}, theirs = {(void *)(uintptr_t)from, nbytes};
    return process_vm_readv(process, &mine, 1, &theirs, 1, 0) == nbytes;
}

static int write_once(pid_t process, uint64_t to, const void *from, int64_t nbytes) {
    struct iovec mine = {(void *)(uintptr_t)from, nbytes}, theirs = {(void *)(uintptr_t)to, nbytes};
    return process_vm_writev(process, &mine, 1, &theirs, 1, 0) == nbytes;
}

/* Where a piece lies behind another one within a page so that the processor takes each read for one of what was just written: by its
 * instruction for strings of bytes, which the kernel copies with, 2 MiB took ten times as long there. */
static int lies_badly(uint64_t from, uint64_t to) { return (to - from) % PAGE_NBYTES && (to - from) % PAGE_NBYTES < BEHIND_NBYTES; }

/* A place in `room`, which has a page more than what is copied at a time, half a page away from where the other copy begins or ends. */
static unsigned char *window_in(unsigned char *room, uint64_t other) {
    return room + (other + PAGE_NBYTES / 2 - (uint64_t)(uintptr_t)room) % PAGE_NBYTES;
}

/* As read_once, and wherever the two lie. */
static int read_whole(pid_t process, uint64_t from, unsigned char *to, int64_t nbytes) {
    if (!lies_badly(from, (uint64_t)(uintptr_t)to)) return read_once(process, from, to, nbytes);
    _Alignas(64) unsigned char room[PIECE_NBYTES + PAGE_NBYTES], *window = window_in(room, from);
    for (int64_t at = 0, n; at < nbytes; at += n) {
        n = nbytes - at < PIECE_NBYTES ? nbytes - at : PIECE_NBYTES;
        if (!read_once(process, from + at, window, n)) return 0;
        he_copy(to + at, window, n, nbytes);
    }
    return 1;
}

static int write_whole(pid_t process, uint64_t to, const unsigned char *from, int64_t nbytes) {
    if (!lies_badly((uint64_t)(uintptr_t)from, to)) return write_once(process, to, from, nbytes);
    _Alignas(64) unsigned char room[PIECE_NBYTES + PAGE_NBYTES], *window = window_in(room, to);
    for (int64_t at = 0, n; at < nbytes; at += n) {
        n = nbytes - at < PIECE_NBYTES ? nbytes - at : PIECE_NBYTES;
        he_near(window, from + at, n);
        if (!write_once(process, to + at, window, n)) return 0;
    }
    return 1;
}

/* Reads a number that a rank has put where its end says, and writes it there once more: the process, or 0. */
static pid_t tried(he_group *g, int rank) {
    const he_end *end = &g->ends[g->index[rank]];
    uint64_t found = 0;
    pid_t process = process_of(g, rank);
    if (process <= 0 || !read_once(process, end->probe_at, &found, sizeof found) || found != end->probe) return 0;
    return write_once(process, end->probe_at, &found, sizeof found) ? process : 0;
}

static int try_all(he_group *g) {
    for (int i = 0; i < g->nlocal; i++)
        if (i != g->here && !(g->peers[g->ranks[i]].process = tried(g, g->ranks[i]))) return 0;
    return 1;
}

/* All ranks have come to a call. */
void he_attach_try(he_group *g) {
    if (g->attach == HE_UNTRIED) g->attach = try_all(g) ? HE_ATTACHED : HE_REFUSED;
}

/* Something for others to find. */
void he_attach_offer(he_group *g) {
    g->probe = (uint64_t)he_now() * 0x9e3779b97f4a7c15ULL + (uint64_t)g->rank;
    g->ends[g->here].probe = g->probe;
    g->ends[g->here].probe_at = (uint64_t)(uintptr_t)&g->probe;
}

/* Whether this process reaches that of one rank, which has shown that it is there; for the thread of messages. */
int he_attach_one(he_group *g, int rank) {
    he_peer *peer = &g->peers[rank];
    if (!peer->lender && !(peer->lender = tried(g, rank))) peer->lender = -1;
    return peer->lender > 0;
}

/* Whether all ranks said that they can do it. Slices of an HE_ALL_REDUCE go through the cache faster than through the
 * kernel, and those of an HE_REDUCE have nowhere to stay. */
int he_attached(const he_group *g, const he_work *w, uint32_t number) {
    if (w->call.kind == HE_ALL_REDUCE || w->call.kind == HE_REDUCE || w->call.kind == HE_BARRIER) return 0;
    for (int r = 0; r < g->size; r++)
        if (!said_by(g, r, number)->attached) return 0;
    return 1;
}

/* Reads from another rank's memory. A process that is gone meanwhile is named as that. */
int he_read(he_group *g, const he_call *call, int process, int rank, uint64_t from, unsigned char *to, int64_t nbytes) {
    for (int64_t at = 0, n; at < nbytes; at += n) {
        n = nbytes - at < MOST_NBYTES ? nbytes - at : MOST_NBYTES;
        if (atomic_load(&g->failed)) return he_look(g);
        if (read_whole(process, from + at, to + at, n)) continue;
        int reason = errno == ESRCH ? HE_ENDED : HE_UNREADABLE;
        int code = he_look(g); /* what a rank has freed that failed before cannot be read either */
        return code ? code : he_fail(g, reason, rank, g->rank, call, NULL, 0);
    }
    return HE_OK;
}

/* Writes to another rank's memory, unless that has shut it. */
int he_write(he_group *g, const he_call *call, int process, int rank, uint64_t to, const unsigned char *from, int64_t nbytes) {
    uint32_t *visits = &he_loan_of(g, g->rank, rank)->visits;
    for (int64_t at = 0, n; at < nbytes; at += n) {
        n = nbytes - at < MOST_NBYTES ? nbytes - at : MOST_NBYTES;
        if (atomic_load(&g->failed)) return he_look(g);
        int may = !(__atomic_add_fetch(visits, 1, __ATOMIC_SEQ_CST) & SHUT) && atomic_load(&g->peers[rank].state) == HE_HERE;
        int done = may && write_whole(process, to + at, from + at, n), error = errno;
        __atomic_sub_fetch(visits, 1, __ATOMIC_SEQ_CST);
        if (done) continue;
        int code = he_look(g), reason = !may ? HE_LEFT : error == ESRCH ? HE_ENDED : HE_UNREADABLE;
        return code ? code : he_fail(g, reason, rank, g->rank, call, NULL, 0);
    }
    return HE_OK;
}

/* From here on nobody begins to write in this process: its memory is its own again before a call that has failed returns, or the
 * group is gone. Waits for whoever is at it, for SHUT_NS, while it is not lost. A rank whose process is stopped between its look
 * and its write still writes one piece once it goes on: nothing but its end takes that back, as the kernel has no write that looks
 * first, and to wait for longer would be a wait without a limit. `Group.deadline_s` tells users so. */
void he_shut(he_group *g) {
    if (atomic_load(&g->forked)) return; /* it is its parent's */
    int64_t until_ns = he_now() + SHUT_NS;
    for (int i = 0; i < g->nlocal; i++) {
        if (i == g->here) continue;
        uint32_t *visits = &he_loan_of(g, g->ranks[i], g->rank)->visits;
        __atomic_fetch_or(visits, SHUT, __ATOMIC_SEQ_CST);
        while (__atomic_load_n(visits, __ATOMIC_SEQ_CST) & ~SHUT && atomic_load(&g->peers[g->ranks[i]].state) == HE_HERE && he_now() < until_ns)
            sched_yield();
    }
}

static int read_from(he_group *g, const he_work *w, int rank, uint64_t from, unsigned char *to, int64_t nbytes) {
    return he_read(g, &w->call, g->peers[rank].process, rank, from, to, nbytes);
}

/* Room for a window of each rank's source. */
static unsigned char *windows(he_group *g) { return he_scratch(g, g->size * WINDOW_NBYTES); }

static int reduce_window(he_group *g, const he_work *w, uint32_t number, unsigned char *room, int64_t at, int64_t n, unsigned char *dst) {
    int64_t size = he_nbytes_of(w->call.dtype);
    const unsigned char *srcs[g->size];
    for (int r = 0; r < g->size; r++) {
        unsigned char *window = room + r * WINDOW_NBYTES;
        if (r != g->rank && read_from(g, w, r, said_by(g, r, number)->src_at + at * size, window, n * size)) return he_look(g);
        srcs[r] = r == g->rank ? w->src + at * size : window;
    }
    for (int64_t i = 0, k; i < n; i += k) {
        k = n - i < HE_BLOCK ? n - i : HE_BLOCK;
        he_reduce_block(w->call.dtype, w->call.reduce, g->size, srcs, k, dst + i * size);
        for (int r = 0; r < g->size; r++) srcs[r] += k * size;
    }
    return HE_OK;
}

/* Elements [at, at + n) of all sources, reduced into `dst`. */
static int reduce(he_group *g, const he_work *w, uint32_t number, int64_t at, int64_t n, unsigned char *dst) {
    int64_t size = he_nbytes_of(w->call.dtype), most = WINDOW_NBYTES / size, k;
    unsigned char *room = windows(g);
    if (!room) return he_fail(g, HE_NO_MEMORY, g->rank, g->rank, &w->call, NULL, 0);
    int code = HE_OK;
    for (int64_t i = 0; i < n && !code; i += k) {
        k = n - i < most ? n - i : most;
        code = reduce_window(g, w, number, room, at + i, k, dst + i * size);
    }
    return code;
}

/* What this rank has for itself. */
static void take_own(he_group *g, const he_work *w) {
    int64_t size = he_nbytes_of(w->call.dtype), n = he_part_count(g, w, g->rank, g->rank) * size;
    const unsigned char *src = w->src + he_part_in_src(g, w, g->rank, g->rank) * size;
    unsigned char *dst = w->dst + he_part_in_dst(g, w, g->rank, g->rank) * size;
    if (n && dst != src) he_copy(dst, src, n, n);
}

static int pull(he_group *g, const he_work *w, uint32_t number) {
    int64_t size = he_nbytes_of(w->call.dtype);
    int code = HE_OK;
    take_own(g, w);
    for (int k = 1; k < g->size && !code; k++) {
        int r = (g->rank + k) % g->size;
        int64_t from = he_part_in_src(g, w, r, g->rank) * size, n = he_part_count(g, w, r, g->rank) * size;
        unsigned char *dst = w->dst + he_part_in_dst(g, w, r, g->rank) * size;
        if (n) code = read_from(g, w, r, said_by(g, r, number)->src_at + from, dst, n);
    }
    return code;
}

/* Copies pieces of what the root has for a rank, or that for the root, until none is left. */
static int pass(he_group *g, const he_work *w, uint32_t number, int other) {
    int root = w->call.root, from = w->call.kind == HE_GATHER ? other : root, to = w->call.kind == HE_GATHER ? root : other, code = HE_OK;
    int64_t size = he_nbytes_of(w->call.dtype), nbytes = he_part_count(g, w, from, to) * size, n;
    int64_t most = (int64_t)he_pieces_at_once(nbytes) * PIECE_NBYTES;
    uint64_t src = said_by(g, from, number)->src_at + he_part_in_src(g, w, from, to) * size;
    uint64_t dst = said_by(g, to, number)->dst_at + he_part_in_dst(g, w, from, to) * size, *pieces = &g->ends[g->index[other]].pieces;
    for (int64_t at; !code && (at = he_claim(pieces, number) * most) < nbytes;) {
        n = nbytes - at < most ? nbytes - at : most;
        if (g->rank == to) code = read_from(g, w, from, src + at, (unsigned char *)(uintptr_t)dst + at, n);
        else code = he_write(g, &w->call, g->peers[to].process, to, dst + at, (const unsigned char *)(uintptr_t)src + at, n);
    }
    return code;
}

static int pass_all(he_group *g, const he_work *w, uint32_t number) {
    int code = HE_OK;
    if (g->rank != w->call.root) return pass(g, w, number, g->rank);
    take_own(g, w);
    for (int k = 1; k < g->size && !code; k++) code = pass(g, w, number, (g->rank + k) % g->size);
    return code;
}

int he_run_attached(he_group *g, const he_work *w, uint32_t number) {
    int64_t at = he_part_in_src(g, w, 0, g->rank), n = he_part_count(g, w, 0, g->rank);
    int code;
    if (w->call.kind == HE_REDUCE_SCATTER) code = reduce(g, w, number, at, n, w->dst);
    else if (he_is_rooted(w->call.kind)) code = pass_all(g, w, number);
    else code = pull(g, w, number);
    if (code) return code;
    he_post(g); /* nobody may change its memory before all have read it */
    return he_await_all(g, w, g->posts - 1);
}
