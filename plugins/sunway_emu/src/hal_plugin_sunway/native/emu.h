/* One emulated core group: 64 CPEs that run as contexts of one thread, and the clock of all. Times are
 * cycles of a CPE. Everything happens in events, in the order of their times; equal times in the order
 * in which the events were made, so a run gives the same result every time. */
#ifndef EMU_H
#define EMU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "emu_api.h"

enum { SIDE = 8, CPES = SIDE * SIDE, MPE = CPES, CONTEXTS = CPES + 1, STOPS = CPES / 4 };
enum { STACK_NBYTES = 320 << 10 }; /* all of an LDM, and behind it what the emulator's own calls take */

/* The figures of chip.toml that this side needs, under their names there. */
#define FIGURES(X)                                                                                  \
    X(cpe_hz) X(mpe_hz) X(ldm_nbytes) X(cache_nbytes) X(fp64_flop_cycle) X(fp32_flop_cycle)         \
    X(fp16_flop_cycle) X(int_ops_cycle) X(ldm_nbytes_cycle) X(memory_nbytes_s) X(lost_share)        \
    X(line_nbytes) X(row_nbytes) X(banks) X(burst_lines) X(request_cycles) X(row_open_cycles)       \
    X(write_row_cycles) X(write_queue_lines) X(partial_line_cycles) X(path_cycles) X(read_cycles)   \
    X(get_nbytes_cycle) X(put_nbytes_cycle) X(dma_most_nbytes) X(dma_align_nbytes) X(rma_cycles)    \
    X(rma_column_cycles) X(rma_row_cycles) X(rma_nbytes_cycle) X(rma_reply_cycles)                  \
    X(rma_message_cycles) X(sync_cycles) X(spawn_cycles) X(join_cycles)

struct figures {
#define X(name) double name;
    FIGURES(X)
#undef X
};
extern struct figures chip;
bool figure_set(const char *name, double value);

/* events.c */
typedef void (*event_fn)(void *object, int argument);
extern double clock_now;
void event_at(double when, event_fn run, void *object, int argument);
bool event_next(void);
void events_clear(void);

/* cpe.c: contexts and their states */
enum state { IDLE, READY, WAITING, ENDED };
enum wait { FOR_REPLY, FOR_SYNC, FOR_JOIN, FOR_CALL };

struct block { /* of ldm_malloc */
    long offset, nbytes;
    int line;
    struct block *next;
};

struct cpe {
    struct emu_self self; /* first: emu_self points here */
    double now;
    enum state state;
    enum wait wait;
    int line; /* of the last call of the runtime */
    volatile int *word;
    int value;
    int coll; /* the reply word of collective calls */
    char *ldm, *stack;
    long ldm_static;
    struct block *blocks;
    struct transfer *transfers; /* those that no wait has covered, newest first */
    double busy, dma_wait, sync_wait, flops;
    double mark_from;
    const char *mark;
};
extern struct cpe cpes[CONTEXTS];
extern struct cpe *running; /* NULL: the scheduler */
extern long switches;

void cpes_open(void);
void cpe_start(struct cpe *c, double when, void (*entry)(void *), void *argument);
void cpe_yield(void);
void cpe_wake(struct cpe *c, double when);
void cpe_settle(struct cpe *c);
void cpes_abandon(void);
bool on_stack(const struct cpe *c, const void *p);
bool in_ldm(const struct cpe *c, const void *p);
struct cpe *owner_of(const void *p);
void *translated(const void *p, const struct cpe *from, const struct cpe *to);

/* ldm.c */
void ldm_open(void);
void ldm_begin(const char *image, long image_nbytes, long nbytes, bool zero);
void ldm_end(void);
long ldm_used(const struct cpe *c);

/* fail.c: the first failure ends the run. Called by a CPE, it does not return. */
enum { FAIL_NBYTES = 16384 };
extern char fail_kind[32], fail_text[FAIL_NBYTES];
extern int fail_line;
bool failed(void);
size_t fail_who(const struct cpe *c, char *text, size_t size);
void fail(struct cpe *c, const char *kind, const char *format, ...) __attribute__((format(printf, 3, 4)));
void fail_clear(void);
void fail_deadlock(void);

/* transfers.c */
struct burst;
struct transfer {
    struct cpe *cpe;
    char *ldm, *main;
    long len, bsize, stride;
    int op, line;
    uint64_t receivers; /* of a broadcast */
    volatile int *reply, *remote_reply; /* the second is of RMA */
    bool guarded, complete, blocking, rma;
    uint64_t sum;
    /* what the memory has still to do */
    long block, within, row, acks;
    bool more;
    struct burst *first, *last;
    struct transfer *after;
    struct transfer *next;
};
struct transfer *transfer_new(struct cpe *c);
void transfer_track(struct transfer *t);
void transfers_covered(struct cpe *c, volatile int *reply);
void transfers_check_exit(struct cpe *c);
void transfers_forget(struct cpe *c);
bool overlap_check(struct cpe *c, const char *from, long len, bool writes, const char *what);
void guard(struct transfer *t);
bool guard_holds(const struct transfer *t);
void replied(struct cpe *owner, volatile int *reply, double when);

/* memory.c: DMA engines, mesh stops and the memory controller */
void memory_arena(const char *base, long nbytes);
void memory_reset(void);
void memory_begin(struct transfer *t, double when);
/* dma.c */
void dma_done(struct transfer *t, double when);
extern double moved_get, moved_put;
extern const struct transfer *copying;
struct span { char *from; long nbytes; };
void dma_allow(const struct span *spans, int count);

/* rma.c */
double mesh_cycles(const struct cpe *a, const struct cpe *b);
int stop_of(const struct cpe *c);
void mesh_reset(void);
uint64_t members_of(const struct cpe *c, int mode, unsigned mask);
bool place_check(struct cpe *c, const void *p, long len, const char *what);
void reply_at(double when, struct cpe *owner, volatile int *reply);
void await_call(struct transfer *t);
/* sync.c */
void sync_reset(void);

/* trace.c */
void trace_open(const char *path);
void trace_span(const struct cpe *c, const char *name, double from, double to, int line);
bool trace_write(void);

/* program.c */
struct program;
struct program *program_load(const char *path, char *why, size_t size);
void program_unload(struct program *p);
void *program_symbol(struct program *p, const char *name);
void program_begin(struct program *p, bool zero);
long program_ldm(const struct program *p);
struct span program_span(const struct program *p);
const char *program_place(const struct program *p, const void *pc, unsigned long *offset);
extern struct program *current;

/* worker.c: whether the process that gives orders has ended */
bool host_gone(void);

/* group.c */
struct outcome { double cycles, busy, dma_wait, sync_wait, flops, get_nbytes, put_nbytes; };
bool group_launch(struct program *p, void (*entry)(void *), void *argument, struct outcome *out);
void group_cpe_ended(void);
bool group_host(struct program *host, struct program *slaves, struct outcome *out);

#endif
