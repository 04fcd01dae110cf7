/* DMA as a CPE calls it: what is refused, what is started, and what happens at the end. */
#include <stdlib.h>
#include <string.h>

#include "emu.h"

enum { MOST_SPANS = 512 };

double moved_get, moved_put;
static struct span spans[MOST_SPANS];
static int span_count;

/* Main memory that a launch may touch; none: everything that is no scratchpad. */
void dma_allow(const struct span *given, int count) {
    span_count = count < MOST_SPANS ? count : MOST_SPANS;
    memcpy(spans, given, (size_t)span_count * sizeof *spans);
}

static bool allowed(const char *from, long nbytes) {
    for (int i = 0; i < span_count; i++)
        if (from >= spans[i].from && nbytes <= spans[i].nbytes - (from - spans[i].from)) return true;
    return !span_count;
}

static bool main_check(struct cpe *c, const struct transfer *t) {
    long blocks = t->len / t->bsize, gaps, extent;
    bool beyond = __builtin_mul_overflow(blocks - 1, t->stride, &gaps) || __builtin_add_overflow(t->len, gaps, &extent);
    if (beyond)
        return fail(c, "illegal-address", "DMA with the stride %ld leads out of the address space", t->stride), false;
    if (owner_of(t->main) || extent < t->len)
        return fail(c, "illegal-address", "DMA with %p in place of main memory: that is LDM, or the stride "
                    "%ld leads backwards", (void *)t->main, t->stride), false;
    if (!allowed(t->main, extent))
        return fail(c, "illegal-address", "DMA of %ld bytes at %p (with strides %ld) leaves the program's "
                    "arguments: no buffer, variable or argument block holds all of it",
                    t->len, (void *)t->main, extent), false;
    return true;
}

static bool size_check(struct cpe *c, const struct transfer *t) {
    long align = (long)chip.dma_align_nbytes;
    if (t->len <= 0 || t->len > (long)chip.dma_most_nbytes || t->bsize > (long)chip.dma_most_nbytes)
        return fail(c, "launch-fault", "DMA of %ld bytes (blocks of %ld): a request takes 1 to %.0f bytes; "
                    "split it", t->len, t->bsize, chip.dma_most_nbytes), false;
    if (((uintptr_t)t->ldm | (uintptr_t)t->main | (uintptr_t)t->len | (uintptr_t)t->bsize |
         (uintptr_t)t->stride) % (uintptr_t)align)
        return fail(c, "launch-fault", "misaligned DMA: LDM %p, main memory %p, %ld bytes in blocks of %ld with "
                    "stride %ld must all be multiples of %ld", (void *)t->ldm, (void *)t->main, t->len,
                    t->bsize, t->stride, align), false;
    if (t->len % t->bsize)
        return fail(c, "launch-fault", "DMA of %ld bytes is no whole number of blocks of %ld", t->len,
                    t->bsize), false;
    return true;
}

/* An address of the CPE's own scratchpad or stack, with room for `len` bytes. */
bool place_check(struct cpe *c, const void *p, long len, const char *what) {
    const char *from = p;
    long most = (long)(chip.ldm_nbytes - chip.cache_nbytes);
    if (in_ldm(c, p) && from + len <= c->ldm + most) return true;
    if (on_stack(c, p) && from + len <= c->stack + STACK_NBYTES) {
        long depth = c->stack + STACK_NBYTES - from;
        if (ldm_used(c) + depth <= most) return true;
        return fail(c, "ldm", "the stack is %ld bytes deep here and does not fit into the LDM of %ld bytes, "
                    "of which %ld are in use", depth, most, ldm_used(c)), false;
    }
    return fail(c, "illegal-address", "%s of %ld bytes at %p: that is not in this CPE's LDM (are destination and "
                "source in the right order?)", what, len, p), false;
}

uint64_t members_of(const struct cpe *c, int mode, unsigned mask) {
    uint64_t found = 0;
    for (int i = 0; i < CPES; i++) {
        bool in = mode == EMU_ARRAY || (mode == EMU_SINGLE && i == c->self.pen) ||
                  (mode == EMU_ROW && mask >> (i / SIDE) & 1) || (mode == EMU_COL && mask >> (i % SIDE) & 1);
        if (in) found |= (uint64_t)1 << i;
    }
    return found;
}

static void reply_now(void *object, int owner) { replied(&cpes[owner], object, clock_now); }

void reply_at(double when, struct cpe *owner, volatile int *reply) {
    event_at(when, reply_now, (void *)reply, owner->self.pen);
}

const struct transfer *copying; /* for the words about an address that is not there */

static void copy(const struct transfer *t, char *ldm) {
    copying = t;
    for (long i = 0, n = t->len / t->bsize; i < n; i++) {
        char *main = t->main + i * (t->bsize + t->stride), *at = ldm + i * t->bsize;
        if (t->op == EMU_GET) memcpy(at, main, (size_t)t->bsize);
        else memcpy(main, at, (size_t)t->bsize);
    }
    copying = NULL;
}

/* The memory's side broadcasts to a row or a column itself. To all, the runtime gets the data to one CPE
 * and sends them over the mesh from there. */
static void deliver(struct transfer *t, double when) {
    struct cpe *c = t->cpe;
    if (t->receivers == UINT64_MAX) when += (double)t->len / chip.rma_nbytes_cycle;
    for (int i = 0; i < CPES; i++) {
        if (i == c->self.pen || !(t->receivers >> i & 1)) continue;
        copy(t, translated(t->ldm, c, &cpes[i]));
        volatile int *word = t->reply == &c->coll ? &cpes[i].coll : translated((void *)t->reply, c, &cpes[i]);
        reply_at(when + mesh_cycles(c, &cpes[i]), &cpes[i], word);
    }
}

void dma_done(struct transfer *t, double when) {
    struct cpe *c = t->cpe;
    if (!guard_holds(t)) {
        c->line = t->line;
        fail(c, "launch-fault", "race: the program wrote to LDM that the DMA %s of this line still uses; wait for "
             "its reply word first", t->op == EMU_GET ? "get" : "put");
        return;
    }
    copy(t, t->ldm);
    deliver(t, when);
    *(t->op == EMU_GET ? &moved_get : &moved_put) += (double)t->len;
    t->complete = true;
    if (t->blocking) cpe_wake(c, when);
    else replied(c, t->reply, when);
}

/* Wait for a transfer that only this call knows. */
void await_call(struct transfer *t) {
    struct cpe *c = t->cpe;
    double from = c->now;
    t->blocking = true;
    c->state = WAITING;
    c->wait = FOR_CALL;
    cpe_yield();
    c->dma_wait += c->now - from;
    trace_span(c, t->rma ? "wait RMA" : "wait DMA", from, c->now, c->line);
    free(t);
}

int emu_dma(int line, int op, int mode, void *ldm, const void *main, long len, long bsize, long stride,
            volatile int *reply) {
    struct cpe *c = running;
    cpe_settle(c);
    c->line = line;
    struct transfer *t = transfer_new(c);
    t->op = op;
    t->ldm = ldm;
    t->main = (char *)main;
    t->len = len;
    t->bsize = bsize > 0 ? bsize : len;
    t->stride = bsize > 0 ? stride : 0;
    t->reply = reply;
    t->receivers = members_of(c, mode, mode == EMU_ROW ? 1u << c->self.row : 1u << c->self.col);
    const char *what = op == EMU_GET ? "DMA get" : "DMA put";
    if (!size_check(c, t) || !place_check(c, ldm, len, what) || !main_check(c, t) ||
        !overlap_check(c, ldm, len, op == EMU_GET, what))
        return -1;
    memory_begin(t, c->now);
    if (!reply) {
        await_call(t);
    } else {
        if (reply != &c->coll) guard(t);
        transfer_track(t);
    }
    return 0;
}

int emu_dma_coll(int line, int mode, void *ldm, const void *main, long len, long bsize, long stride) {
    struct cpe *c = running;
    c->coll = 0;
    emu_sync(line, mode, 0xff);
    bool root = mode == EMU_ROW ? !c->self.col : mode == EMU_COL ? !c->self.row : !c->self.pen;
    if (root) emu_dma(line, EMU_GET, mode, ldm, main, len, bsize, stride, &c->coll);
    return emu_wait_value(line, &c->coll, 1);
}

int emu_wait_value(int line, volatile int *reply, int value) {
    struct cpe *c = running;
    cpe_settle(c);
    c->line = line;
    if (*reply < value) {
        double from = c->now;
        c->state = WAITING;
        c->wait = FOR_REPLY;
        c->word = reply;
        c->value = value;
        cpe_yield();
        c->dma_wait += c->now - from;
        trace_span(c, "wait reply", from, c->now, line);
    }
    transfers_covered(c, reply);
    return 0;
}

int emu_dma_barrier(int line) {
    struct cpe *c = running;
    c->line = line;
    while (c->transfers) {
        struct transfer *t = c->transfers;
        if (!t->complete) emu_wait_value(line, t->reply, *t->reply + 1);
        transfers_covered(c, NULL);
    }
    return 0;
}
