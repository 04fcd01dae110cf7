/* Shared structures of the communication engine.
 *
 * A group's ranks of one host share a segment: an end for each rank, which that rank alone writes, slots for
 * collectives, and rings for messages. Ranks of other hosts are reached through sockets. One native thread of the
 * process, the watch, tells others that this process lives and hears whether they do.
 *
 * Locks, outer to inner: watch -> group `lock`. No lock is held while anybody waits for another rank. */
#ifndef HAL_ENGINE_H
#define HAL_ENGINE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef __x86_64__
#include <emmintrin.h>
#endif
#include "api.h"
#include "seal.h"

#define LINE 128
#define HE_BLOCK 1024              /* elements kept in the first-level cache */
#define STEP_NBYTES (256LL << 10)  /* what a rank shows the others in a step */
#define CHUNK_NBYTES (128LL << 10) /* what a rank shows in a stage of a sliced reduction */
#define STREAM_NBYTES (4LL << 20)  /* from here on a destination does not stay in the cache */
/* From here on both ranks copy what one has for the other from process to process. Through the caches 2 MiB took 0.7 of the time where
 * the two cores shared one, twice the time where they shared none. */
#define HE_ATTACH_NBYTES (2LL << 20)
#define PIECE_NBYTES (64LL << 10)  /* what a rank takes at a time of what several copy or reduce */
#define BRIEF_NBYTES 40            /* data that is shown in one cache line with its call */
#define STEP_SLOTS 2
#define CHUNK_SLOTS 6
#define CORES 1024
#define LOOK_NS 5000000            /* how often a sleeping wait looks around */

enum { HE_UNTRIED, HE_ATTACHED, HE_REFUSED };

/* A part of memory that others may map: `id` 0 stands for private memory. */
typedef struct { int64_t id, at; } he_place;

/* What a rank shows at the start of a call. */
typedef struct {
    he_call call;
    he_place dst, src;
    uint64_t src_at, dst_at; /* their addresses in its process */
    int32_t attached;        /* whether it reaches the others' memory, and they may reach this */
} he_said;

typedef struct {
    _Alignas(LINE) he_said said;
    _Alignas(LINE) unsigned char data[STEP_NBYTES];
} he_step_slot;

typedef struct {
    _Alignas(LINE) unsigned char data[CHUNK_NBYTES];
} he_chunk_slot;

/* A rank's newest call, which one thread writes and others read: in two places, of which `told` counts up to the one
 * that is whole. `ended` counts the rank's calls that have ended. */
typedef struct {
    uint64_t told, ended;
    uint64_t calls[2][sizeof(he_call) / 8];
} he_last;

/* A small call in one cache line: whoever reads that it is there has all of it, and its data if that is as short. `post` is
 * what `posted` is once the rank has shown the call whole; `what` and `name` stand for the call. */
typedef struct {
    _Alignas(LINE) uint32_t post;
    uint32_t sequence;
    uint64_t what, name;
    unsigned char data[BRIEF_NBYTES];
} he_brief;
_Static_assert(offsetof(he_brief, data) + BRIEF_NBYTES == 64, "a line");

/* A rank's end of the segment. `posted` counts what it has shown, and wraps. */
typedef struct {
    _Alignas(LINE) uint32_t posted;
    uint32_t sleepers;
    he_brief brief[2]; /* by the number of the post that follows it */
    _Alignas(LINE) uint64_t beat;
    uint32_t presence;   /* enum HE_HERE... */
    he_last last;
    uint64_t probe, probe_at; /* a number, and where its process has it too */
    _Alignas(LINE) uint64_t cores[CORES / 64]; /* those that it may run on; none before it has told */
    _Alignas(LINE) uint64_t pieces; /* as those of the head, of what a root has for it, or it for a root */
    _Alignas(LINE) uint32_t bells[2], asleep[2], over[2]; /* by lane; `over` of a rank that leaves */
    _Alignas(LINE) uint32_t failed; /* whether `failure` is told */
    he_failure failure;
} he_end;

typedef struct {
    _Alignas(LINE) uint32_t alarm;  /* counts failures told */
    _Alignas(LINE) uint64_t pieces; /* a call's number and how many of its pieces are taken */
} he_head;

typedef struct he_shared {
    struct he_shared *next;
    int64_t id, nbytes;
    unsigned char *memory;
} he_shared;

/* What this process knows of another rank; most of it is the watch's own. */
typedef struct {
    int process, lender; /* of a rank of this host whose memory can be reached; the same for messages, and -1 where it cannot */
    int life, remote;    /* the connection, -1 without one; whether the rank is of another host */
    int watcher;         /* a pidfd of the thread that watches there; -1 before it has come, and without one */
    atomic_int state;    /* HE_HERE, else the code of how it went */
    uint64_t beat;
    int64_t heard_ns;
    he_last last;        /* of a rank of another host, as it was told */
    int deaf;            /* nothing is believed any more that comes over the connection */
    int data[2];         /* sockets to a rank of another host, by lane; else -1 */
    uint64_t taken[2], put[2]; /* by lane: what was seen last of the ring to a rank of this host, and of that from it */
    he_seal seals[3];    /* of those, and of `life` */
    he_shared *shared;   /* its memories that this process maps, under the group's lock */
} he_peer;

/* Messages to or from one rank. Of those from it: the receive that a message is coming for, the one that is being read
 * although nobody wants its tag, and those that have been read so. */
typedef struct {
    struct he_work *first, *last;
    int64_t number; /* of the next one */
    int64_t came;   /* those from it that have begun */
    void *coming;
    struct he_kept *keeping, *kept;
} he_queue;

struct he_group {
    atomic_int refs;
    int rank, size, nlocal, here; /* `here` is this rank's index among the host's */
    int *index;            /* of a rank among the host's ranks; -1 for one of another host */
    int *ranks;            /* the host's ranks */
    int64_t heartbeat_ns, beat_ns;
    _Atomic int64_t spin_ns; /* 0 before all ranks of the host have told of their cores */
    int64_t next_beat_ns;  /* the watch's own */
    struct he_message *telling; /* what is on its way over `life` to each rank of another host */
    int told, introduced;  /* the news that it sent, and whether it showed itself to the ranks of this host */
    int roams;             /* whether it may run on the cores of all of these */
    size_t nbytes;
    he_head *head;
    he_end *ends;
    he_step_slot *steps;   /* STEP_SLOTS of each rank, where all ranks are on this host */
    he_chunk_slot *chunks; /* CHUNK_SLOTS of each rank, behind them */
    unsigned char *rings;
    unsigned char *scratch; /* of the call that runs */
    int64_t nscratch;
    uint64_t probe;
    int attach;            /* enum HE_UNTRIED... */
    uint32_t posts, step_number, chunk_number;
    int64_t sequence;
    _Atomic uint32_t alarm; /* the last one looked at */
    atomic_int way;        /* of the last call, HE_BY_POST... */
    atomic_int failing, failed;
    he_failure failure;
    _Atomic int64_t next_id;
    pthread_mutex_t lock;  /* of what follows */
    he_shared *own;
    pthread_cond_t changed;
    struct he_work *queue, **tail;
    int threaded, messaging, ending, running;
    int moving;            /* whether a thread moves messages, which it alone does then */
    pthread_cond_t posted;
    he_queue *messages;    /* to and from each rank, and from anybody */
    int64_t nposted;       /* messages, in the order in which they were begun */
    int nmessages;
    int64_t kept_nbytes;   /* of who moves messages: what it keeps that nobody has received yet */
    atomic_int forked, away;
    struct he_group *next; /* of the watch */
    uint64_t mesh;         /* 0 for none */
    int *in_job;           /* the ranks' numbers in their job */
    struct he_group *bound; /* the next group of a mesh, under the meshes' lock */
    he_peer peers[];
};

typedef struct he_work {
    atomic_int refs;
    uint32_t done;         /* a futex */
    uint32_t sleepers;     /* on it */
    int status;
    he_group *group;
    struct he_work *next;
    he_call call;
    unsigned char *dst;
    const unsigned char *src;
    const int64_t *counts;
    struct he_program *program; /* what to follow, or NULL */
    int64_t timeout_ns, budget_ns; /* `budget_ns`: how long the caller's thread waits for all to come; 0: no limit */
    int arrived;           /* whether all ranks have come to it */
    int shown;             /* whether this rank has told of it */
    int small;             /* whether that carries its data already */
    int brief, within;     /* whether it does so in one line, and its data, too, is in that line */
    uint32_t first, number; /* the post that tells of it, and the step of its slot */
} he_work;

static inline uint64_t he_pieces_of(int64_t nbytes) { return (uint64_t)((nbytes + PIECE_NBYTES - 1) / PIECE_NBYTES); }

/* How many pieces of so many bytes a rank takes at once where the kernel copies them, which is slow in small parts: a few, and
 * several parts for each of two. */
static inline uint64_t he_pieces_at_once(int64_t nbytes) {
    uint64_t part = he_pieces_of(nbytes) / 8;
    return part < 8 ? 8 : part < 64 ? part : 64;
}

static inline int64_t he_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Between two looks of a loop that waits. */
static inline void he_relax(void) {
#ifdef __x86_64__
    _mm_pause();
#endif
}

static inline he_step_slot *he_step_slot_of(const he_group *g, int rank, uint32_t number) {
    return &g->steps[rank * STEP_SLOTS + number % STEP_SLOTS];
}

/* Where a rank of the host shows the small call that post `first` tells of. */
static inline he_brief *he_brief_of(const he_group *g, int i, uint32_t first) { return &g->ends[i].brief[first % 2]; }

static inline he_chunk_slot *he_chunk_slot_of(const he_group *g, int rank, uint32_t number) {
    return &g->chunks[rank * CHUNK_SLOTS + number % CHUNK_SLOTS];
}

/* stream.c: a copy that stays in the caches. */
void he_near(unsigned char *dst, const unsigned char *src, int64_t n);
/* Copies what is a part of `all` bytes. */
static inline void he_copy(unsigned char *dst, const unsigned char *src, int64_t n, int64_t all) {
    if (all < STREAM_NBYTES) he_near(dst, src, n);
    else he_stream(dst, src, n);
}
/* As he_stream, to two places, which reads but once. */
void he_stream_to_both(unsigned char *dst, unsigned char *other, const unsigned char *src, int64_t n);
/* futex.c */
void he_wake(uint32_t *word);
void he_futex_wait(uint32_t *word, uint32_t seen, int64_t timeout_ns);
void he_cond_init(pthread_cond_t *cond);
void he_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t timeout_ns);
/* segment.c */
int he_segment_map(he_group *g, int fd);
void he_segment_unmap(he_group *g);
/* failure.c */
void he_bind(he_group *g);
void he_unbind(he_group *g);
void he_meshes_hold(void);
void he_meshes_let_go(void);
void he_meshes_forget(void);
int he_fail(he_group *g, int code, int rank, int told_by, const he_call *ours, const he_call *theirs, int detail);
int he_differs(he_group *g, int rank, const he_call *ours, const void *theirs);
int he_fail_late(he_group *g, int rank, const he_call *ours, const he_call *last, int done);
int he_nonsense(he_group *g, int rank, int wrong);
void he_adopt(he_group *g, int from, const he_failure *told);
int he_look(he_group *g);
/* last.c */
void he_last_write(he_last *last, const he_call *call);
void he_last_ended(he_last *last, uint64_t calls);
he_call he_last_read(const he_last *last, int *done);
void he_last_init(he_last *last);
/* wait.c */
void he_tell_cores(he_group *g);
int he_cores_of_all(const he_group *g, uint64_t *all);
void he_post(he_group *g);
int he_await(he_group *g, const he_work *w, int rank, uint32_t number);
int he_await_all(he_group *g, const he_work *w, uint32_t number);
/* reduce.c */
int he_nbytes_of(int dtype);
int he_is_short(int dtype);
void he_fold(int dtype, int reduce, void *acc, const void *a, const void *b, int64_t n);
void he_divide(int dtype, void *acc, int64_t n, int size);
const void *he_widen(int dtype, const unsigned char *src, float *room, int64_t n);
void he_narrow(int dtype, unsigned char *out, const float *acc, int64_t n);
void he_reduce_block(int dtype, int reduce, int size, const unsigned char *const *srcs, int64_t n, unsigned char *out);
/* convert.c */
void he_f16_to_f32(float *dst, const uint16_t *src, int64_t n);
void he_f32_to_f16(uint16_t *dst, const float *src, int64_t n);
void he_bf16_to_f32(float *dst, const uint16_t *src, int64_t n);
void he_f32_to_bf16(uint16_t *dst, const float *src, int64_t n);
void he_f8_to_f32(int dtype, float *dst, const uint8_t *src, int64_t n);
void he_f32_to_f8(int dtype, uint8_t *dst, const float *src, int64_t n);
/* shape.c */
int he_reduces(int kind);
int he_is_rooted(int kind);
int he_for_each(int kind);
int64_t he_part_count(const he_group *g, const he_work *w, int from, int to);
int64_t he_part_in_src(const he_group *g, const he_work *w, int from, int to);
int64_t he_part_in_dst(const he_group *g, const he_work *w, int from, int to);
/* work.c */
void he_work_finish(he_work *w, int code);
int he_work_leave(he_work *w);
int he_thread_start(he_group *g, void *(*run)(void *));
/* collective.c */
int he_arrive(he_group *g, he_work *w);
int he_finish(he_group *g, he_work *w);
/* stepped.c, sliced.c, direct.c, attach.c: the four ways of a collective on one host */
int64_t he_step_count(const he_group *g, const he_work *w);
void he_step_show(const he_group *g, const he_work *w, int64_t step, unsigned char *data);
void he_step_take(const he_group *g, const he_work *w, int64_t step, uint32_t number);
int he_run_stepped(he_group *g, const he_work *w);
int he_run_sliced(he_group *g, const he_work *w);
int he_direct(const he_group *g, const he_work *w, uint32_t number);
int he_run_direct(he_group *g, const he_work *w, uint32_t number);
/* The next of call `number`'s pieces that nobody has taken yet, where `pieces` counts them. All have come to the call before one
 * takes a piece, so no one still takes pieces of another call. */
int64_t he_claim(uint64_t *pieces, uint32_t number);
/* attach.c */
void he_attach_offer(he_group *g);
void he_attach_try(he_group *g);
int he_attach_one(he_group *g, int rank);
int he_read(he_group *g, const he_call *call, int process, int rank, uint64_t from, unsigned char *to, int64_t nbytes);
int he_write(he_group *g, const he_call *call, int process, int rank, uint64_t to, const unsigned char *from, int64_t nbytes);
void he_shut(he_group *g);
int he_attached(const he_group *g, const he_work *w, uint32_t number);
int he_run_attached(he_group *g, const he_work *w, uint32_t number);
/* group.c */
unsigned char *he_scratch(he_group *g, int64_t nbytes);
/* program.c */
struct he_program *he_program_new(he_group *g, const he_route *route);
int he_program_run(he_group *g, he_work *w);
void he_program_free(struct he_program *p);
/* leave.c */
void he_part(he_group *g);
int he_is_away(he_group *g, int lane, int rank);
/* share.c */
he_place he_place_of(he_group *g, const void *memory);
unsigned char *he_found(he_group *g, int rank, he_place place, int64_t needed, int *code);
unsigned char *he_mapped(he_group *g, const he_work *w, int rank, he_place place, int64_t needed);
int he_shared_arrived(he_group *g, int rank, int64_t id, int64_t nbytes, int fd);
int he_shared_gone(he_group *g, int rank, int64_t id);
void he_shared_close(he_group *g);
/* watch.c */
int he_watch_add(he_group *g);
void he_watch_remove(he_group *g);
void he_watch_wake(void);
void he_watch_hold(void);
void he_watch_let_go(void);
#endif
