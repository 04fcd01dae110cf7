/* The CPEs and the MPE: contexts of one thread with a clock each. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include "emu.h"

struct figures chip;
struct cpe cpes[CONTEXTS];
struct cpe *running;
struct emu_self *emu_self;
long switches;

static struct {
    ucontext_t start;
    jmp_buf at;
    bool begun;
    void (*entry)(void *);
    void *argument;
} contexts[CONTEXTS];
static jmp_buf scheduler;

bool figure_set(const char *name, double value) {
#define X(figure) \
    if (!strcmp(name, #figure)) return chip.figure = value, true;
    FIGURES(X)
#undef X
    return false;
}

static char *stack_with_guard(void) {
    char *p = mmap(NULL, STACK_NBYTES + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || mprotect(p, 4096, PROT_NONE)) abort();
    return p + 4096;
}

void cpes_open(void) {
    for (int i = 0; i < CONTEXTS; i++) {
        struct cpe *c = &cpes[i];
        c->self.pen = i;
        c->self.row = i / SIDE;
        c->self.col = i % SIDE;
        c->stack = stack_with_guard();
    }
    ldm_open();
}

/* AddressSanitizer wants to be told when the process goes over to another stack, and that the frames of a
 * context that begins anew are no more. */
static struct { const void *base; size_t nbytes; } scheduler_stack;
#ifdef __SANITIZE_ADDRESS__
static void depart(const void *base, size_t nbytes) { __sanitizer_start_switch_fiber(NULL, base, nbytes); }
static void arrived(void) {
    const void *base;
    size_t nbytes;
    __sanitizer_finish_switch_fiber(NULL, &base, &nbytes);
    if (running && !on_stack(running, base)) scheduler_stack.base = base, scheduler_stack.nbytes = nbytes;
}
static void forget_frames(const void *base) { __asan_unpoison_memory_region(base, STACK_NBYTES); }
#else
static void depart(const void *base, size_t nbytes) { (void)base, (void)nbytes; }
static void arrived(void) {}
static void forget_frames(const void *base) { (void)base; }
#endif

/* A context lives on between runs: it takes one entry after the other. */
static void body(int index) {
    struct cpe *c = &cpes[index];
    arrived();
    for (;;) {
        contexts[index].entry(contexts[index].argument);
        cpe_settle(c);
        if (c->mark) trace_span(c, c->mark, c->mark_from, c->now, c->line);
        if (index != MPE) transfers_check_exit(c);
        c->state = ENDED;
        if (index != MPE) group_cpe_ended();
        cpe_yield();
    }
}

static void switch_to(int index) {
    if (_setjmp(scheduler)) {
        arrived();
        return;
    }
    depart(cpes[index].stack, STACK_NBYTES);
    if (contexts[index].begun) _longjmp(contexts[index].at, 1);
    contexts[index].begun = true;
    forget_frames(cpes[index].stack);
    ucontext_t *u = &contexts[index].start;
    getcontext(u);
    u->uc_stack.ss_sp = cpes[index].stack;
    u->uc_stack.ss_size = STACK_NBYTES;
    u->uc_link = NULL;
    makecontext(u, (void (*)(void))body, 1, index);
    setcontext(u);
}

void cpe_yield(void) {
    int index = running->self.pen;
    if (!_setjmp(contexts[index].at)) {
        depart(scheduler_stack.base, scheduler_stack.nbytes);
        _longjmp(scheduler, 1);
    }
    arrived();
}

static void resume(void *object, int argument) {
    struct cpe *c = object;
    (void)argument;
    if (clock_now > c->now) c->now = clock_now;
    c->state = READY;
    running = c;
    emu_self = &c->self;
    switches++;
    switch_to(c->self.pen);
    running = NULL;
    emu_self = NULL;
}

void cpe_start(struct cpe *c, double when, void (*entry)(void *), void *argument) {
    contexts[c->self.pen].entry = entry;
    contexts[c->self.pen].argument = argument;
    memset(&c->self.mix, 0, sizeof c->self.mix);
    c->now = when;
    c->line = 0;
    c->coll = 0;
    c->word = NULL;
    c->mark = NULL;
    c->busy = c->dma_wait = c->sync_wait = c->flops = 0;
    c->state = READY;
    event_at(when, resume, c, 0);
}

void cpe_wake(struct cpe *c, double when) {
    c->state = READY;
    c->word = NULL;
    event_at(when > c->now ? when : c->now, resume, c, 0);
}

/* Two pipes: one computes, the other moves data and counts; the longer one decides. */
static double cycles_of(const struct emu_mix *m) {
    double first = m->fp64 / chip.fp64_flop_cycle + m->fp32 / chip.fp32_flop_cycle +
                   m->fp16 / chip.fp16_flop_cycle;
    double second = m->ldm / chip.ldm_nbytes_cycle + m->integer / chip.int_ops_cycle;
    return first > second ? first : second;
}

void cpe_settle(struct cpe *c) {
    struct emu_mix *m = &c->self.mix;
    double cycles = cycles_of(m);
    if (cycles > 0) {
        trace_span(c, "compute", c->now, c->now + cycles, c->line);
        c->flops += m->fp64 + m->fp32 + m->fp16;
        c->busy += cycles;
        c->now += cycles;
        memset(m, 0, sizeof *m);
    }
}

/* After a failure contexts stand anywhere: they begin anew. */
void cpes_abandon(void) {
    for (int i = 0; i < CONTEXTS; i++) {
        contexts[i].begun = false;
        cpes[i].state = IDLE;
        transfers_forget(&cpes[i]);
    }
}

bool on_stack(const struct cpe *c, const void *p) {
    return (const char *)p >= c->stack && (const char *)p < c->stack + STACK_NBYTES;
}

bool in_ldm(const struct cpe *c, const void *p) {
    return c->ldm && (const char *)p >= c->ldm && (const char *)p < c->ldm + (long)chip.ldm_nbytes;
}

struct cpe *owner_of(const void *p) {
    for (int i = 0; i < CPES; i++)
        if (in_ldm(&cpes[i], p) || on_stack(&cpes[i], p)) return &cpes[i];
    return NULL;
}

/* The same place in another CPE's LDM: what a program writes as its own address. */
void *translated(const void *p, const struct cpe *from, const struct cpe *to) {
    if (in_ldm(from, p)) return to->ldm + ((const char *)p - from->ldm);
    if (on_stack(from, p)) return to->stack + ((const char *)p - from->stack);
    return (void *)p;
}
