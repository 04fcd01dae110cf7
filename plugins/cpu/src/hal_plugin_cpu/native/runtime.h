/* Shared structures of the native runtime.
 *
 * Locks, outer to inner: device `lock` (timelines, operations, ready items) -> call `lock` -> `memory_lock`
 * (accounting and the list of handles). Releasing an object takes `memory_lock` at most, so it is
 * legal under any of them. */
#ifndef HAL_CPU_RUNTIME_H
#define HAL_CPU_RUNTIME_H

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
#include "api.h"

enum hc_type { HC_BUFFER, HC_PROGRAM, HC_LAUNCHABLE, HC_GRAPH, HC_TIMELINE };

/* `refs` keep the struct; `holds` keep the resource: one of the handle until `free`, one per operation in flight
 * and per graph that uses it. */
typedef struct hc_object {
    atomic_int refs, holds, freed;
    int type;
    int64_t epoch;
    hc_device *dev;
    struct hc_object *next, **link; /* of the device, under memory_lock */
} hc_object;

struct hc_buffer {
    hc_object object;
    unsigned char *data;
    int64_t nbytes, mapped; /* `mapped` bytes to unmap; 0: from malloc; -1: not ours */
    int fd, label;          /* label -1: not counted */
    int64_t reserved;       /* the epoch in which its bytes were counted */
};

typedef void (*hc_entry)(const uint64_t *args, const int64_t *grid, int64_t begin, int64_t end);

struct hc_program {
    hc_object object;
    hc_entry entry;
    int name;
};

struct hc_launchable {
    hc_object object;
    hc_program *program;
    _Atomic float cost_ns; /* of one instance, from the last run; 0: not known yet */
    int nargs, nbuffers;
    uint64_t *args;
    hc_buffer **buffers;
};

typedef struct hc_op hc_op;

enum hc_run { HC_RUN_LAUNCH, HC_RUN_COPY, HC_RUN_FILL, HC_RUN_CALL };

/* A unit that workers split into `total` pieces. */
typedef struct hc_item {
    struct hc_item *next;
    hc_op *op;
    int32_t command, name; /* `name` >= 0: of a program; < 0: -1 copy, -2 fill, -3 host call, -4 collective */
    enum hc_run run;
    int64_t total, start_ns;
    hc_launchable *launchable;
    const uint64_t *args;
    int64_t grid[3];
    unsigned char *dst;
    const unsigned char *src;
    int64_t nbytes;
    uint64_t pattern;
} hc_item;

typedef struct hc_graph_state {
    struct hc_graph_state *next;
    int remaining;
    int32_t *pending;
    uint64_t *args;
    hc_item *items;
} hc_graph_state;

struct hc_graph {
    hc_object object;
    int ncommands, nslots, npatches, nobjects;
    hc_item *items;              /* templates */
    int32_t *pending, *successors, *first; /* successors of i: successors[first[i] .. first[i + 1]) */
    hc_patch *patches;
    int32_t *args_at, nargs;     /* where a state keeps a command's own arguments; -1: the command has no slot */
    hc_object **objects;         /* held while the graph lives */
    hc_graph_state *idle;        /* under the device lock */
};

/* A host thread asleep in `hc_wait`. */
typedef struct { uint32_t woken; int remaining, all; int64_t failure; } hc_sleeper;

typedef struct hc_waiter {
    struct hc_waiter *next, **link;
    int64_t value;
    hc_op *op;
    hc_sleeper *sleeper;
} hc_waiter;

struct hc_timeline {
    hc_object object;
    int host_driven, ended;
    uint32_t host_seq;             /* advances when a host call may start or the timeline ends */
    int64_t id, submitted;
    _Atomic int64_t value, failure;
    hc_op *head, *tail, *host_op;
    hc_waiter *waiters;
    hc_timeline *next, **link;     /* of the device, under its lock, while operations may come */
};

enum hc_kind { HC_OP_ITEM, HC_OP_GRAPH, HC_OP_HOST, HC_OP_CALL };

struct hc_op {
    hc_op *next, *todo_next;
    hc_timeline *timeline;
    enum hc_kind kind;
    int pending;                   /* points still to come */
    int started, in_todo, detached, active, taken;
    int hung;                      /* the hc_fault of an injected hang */
    int quiet;                     /* looks of the watch at which it had not come on */
    int limit;                     /* of a graph: commands from this one on are left out */
    int64_t value, failure, fault;
    int nwaits, nobjects;
    hc_waiter *waits;
    hc_object **objects;
    hc_item item;
    hc_graph *graph;
    hc_graph_state *state;
    uint64_t *slots;               /* a replay's slot values, captured at submit */
    hc_call *call;
    int rank;
};

typedef struct { _Alignas(64) _Atomic int64_t next; int64_t end; } hc_range;

/* An item that several workers run together. */
typedef struct hc_slot {
    struct hc_slot *next;
    hc_item *item;
    int joined, nranges;
    int64_t step;
    _Atomic int64_t busy_ns;
    hc_range *ranges;
    uint64_t runs, seen;           /* how many items so far; what the watch saw last */
    int quiet, looked;             /* looks without a change; the number of the last look */
} hc_slot;

/* A worker whose item hangs is abandoned: another takes its place, and it ends if it ever comes back. */
typedef struct hc_worker {
    hc_range range;                /* of `own` */
    hc_slot own, *slot;            /* for what it runs alone; what it works on, under the device lock */
    hc_device *dev;
    pthread_t thread;
    void *stack;
    int index, ended, orphan;
    int64_t spent_ns;              /* processor time when its item was last seen to come on */
    int64_t abandoned;             /* 1 + the epoch in which it was */
    struct hc_worker *next;        /* among the abandoned */
} hc_worker;

/* Whoever has nothing to do looks around so often: no wake-up that goes wrong lets anybody sleep for ever. */
#define HC_IDLE_NS 1000000000LL

#define HC_SPANS 65536
typedef struct { int64_t timeline, value; hc_span span; } hc_span_record;

struct hc_device {
    atomic_int refs, forked, state, hanging, refusing;
    _Atomic int64_t epoch, cause;
    int index, threads;
    pthread_mutex_t lock, memory_lock;
    pthread_cond_t idle;
    atomic_int active;             /* started operations that workers or host threads will finish */
    hc_op *todo, **todo_end;
    hc_item *ready, **ready_end;
    int wanted;                    /* workers that newly ready items could use */
    hc_slot *slots, *open;
    uint32_t work_seq;
    int spinners, sleepers, stop;
    int woken; /* a host's thread, since a worker last let others of its core go first */
    hc_worker **workers, *left;    /* `left`: the abandoned */
    atomic_int abandoned;          /* abandoned workers that have not come back */
    pthread_t watch;
    int64_t progress_ns;
    uint32_t watch_seq;
    int watching, watch_idle, watch_stop, hung, look;
    hc_span_record *spans;
    uint64_t nspans;
    int64_t capacity, live, peak, allocations, nbuffers;
    int64_t *held;
    int nlabels;
    hc_object *objects;
    hc_timeline *timelines;
    int64_t ntimelines, listed_queues;
};

static inline int64_t hc_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* object.c */
void hc_object_init(hc_object *o, enum hc_type type, hc_device *dev);
int hc_acquire(hc_device *dev, void *object);
int hc_acquire_region(hc_device *dev, hc_buffer *b);
void hc_drop(void *object);
void hc_free_objects(hc_device *dev);
void hc_ref(void *object);
/* buffer.c */
void hc_buffer_dispose(hc_buffer *b);
int64_t hc_next_epoch(hc_device *dev);
/* graph.c */
void hc_graph_dispose(hc_graph *g);
void hc_graph_begin(hc_device *dev, hc_op *op);
void hc_graph_recycle(hc_op *op);
void hc_graph_advance(hc_device *dev, hc_op *op, int command);
void hc_graph_destroy(hc_graph *g);
/* timeline.c */
void hc_timeline_freed(hc_device *dev, hc_timeline *t);
void hc_timeline_retire(hc_timeline *t);
void hc_timeline_unlist(hc_timeline *t);
void hc_wake_waiters(hc_device *dev, hc_timeline *t);
void hc_unlink_waits(hc_op *op);
int hc_link_waits(hc_device *dev, hc_op *op, int nwaits, hc_point *waits);
void hc_host_wake(hc_timeline *t);
/* op.c; everything but hc_op_new and hc_op_discard needs the device lock */
hc_op *hc_op_new(enum hc_kind kind, int nwaits, int nobjects, int nslots);
void hc_op_discard(hc_op *op);
int hc_op_use(hc_device *dev, hc_op *op, void *object);
int64_t hc_submit(hc_device *dev, hc_op *op, hc_timeline *t, int nwaits, hc_point *waits, int64_t fault);
void hc_op_done(hc_device *dev, hc_op *op, int64_t failure);
void hc_todo(hc_device *dev, hc_op *op);
void hc_drain(hc_device *dev);
void hc_fail_timeline(hc_device *dev, hc_timeline *t, int64_t failure);
void hc_fail_all(hc_device *dev, int64_t failure);
void hc_declare_lost(hc_device *dev, int64_t failure, int reset_required);
void hc_give_up(hc_device *dev, hc_op *op, int64_t failure);
void hc_note_hang(hc_device *dev, int64_t failure);
/* workers.c */
int hc_start_workers(hc_device *dev);
int hc_refill_workers(hc_device *dev);
int hc_workers_busy(hc_device *dev);
void hc_stop_workers(hc_device *dev);
void hc_abandon(hc_device *dev, hc_slot *slot);
int hc_start_thread(pthread_t *thread, void *stack, int64_t nbytes, void *(*run)(void *), void *argument);
/* pool.c */
int hc_work_once(hc_worker *w);
void hc_rest(hc_device *dev);
void hc_ready(hc_device *dev, hc_item *item);
void hc_kick(hc_device *dev, int helping);
void hc_cancel(hc_slot *slot);
void hc_cancel_detached(hc_device *dev);
/* watch.c */
int hc_start_watch(hc_device *dev);
void hc_stop_watch(hc_device *dev);
void hc_wake_watch(hc_device *dev);
/* spans.c */
void hc_add_span(hc_device *dev, const hc_item *item, int64_t end_ns, int lane);
/* launch.c */
int hc_grid_fits(uint32_t x, uint32_t y, uint32_t z);
void hc_run_item(hc_item *item, int64_t begin, int64_t end);
int64_t hc_pieces(int64_t nbytes);
uint64_t hc_widen(uint64_t pattern, int nbytes);
/* collective.c and move.c */
void hc_call_arrive(hc_device *dev, hc_op *op);
int hc_call_leave(hc_op *op);
void hc_call_forget(hc_op *op);
void hc_call_finish(hc_call *call, hc_device *dev, int lane);
void hc_call_run(hc_call *call, int64_t begin, int64_t end);
/* futex.c */
void hc_cond_init(pthread_cond_t *cond);
void hc_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t timeout_ns);
void hc_futex_wake(uint32_t *word, int n);
int hc_futex_wait(uint32_t *word, uint32_t seen, int64_t timeout_ns);

#endif
