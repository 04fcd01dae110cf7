/* RMA: from scratchpad to scratchpad over the mesh, whose stops four CPEs share. */
#include <stdlib.h>
#include <string.h>

#include "emu.h"

static double out_free[STOPS], in_free[STOPS];

int stop_of(const struct cpe *c) { return c->self.row / 2 * (SIDE / 2) + c->self.col / 2; }

double mesh_cycles(const struct cpe *a, const struct cpe *b) {
    int columns = abs(a->self.col / 2 - b->self.col / 2), rows = abs(a->self.row / 2 - b->self.row / 2);
    return chip.rma_cycles + columns * chip.rma_column_cycles + rows * chip.rma_row_cycles;
}

void mesh_reset(void) {
    memset(out_free, 0, sizeof out_free);
    memset(in_free, 0, sizeof in_free);
}

/* When the first byte leaves, if `len` bytes go out at one stop and in at another from `when` on. */
static double flow(int from, int to, long len, double when) {
    if (when < out_free[from]) when = out_free[from];
    if (to >= 0 && when < in_free[to]) when = in_free[to];
    double busy = when + (double)len / chip.rma_nbytes_cycle + chip.rma_message_cycles;
    out_free[from] = busy;
    if (to >= 0) in_free[to] = busy;
    return when;
}

static double length_cycles(long len) { return (double)len / chip.rma_nbytes_cycle; }

static bool intact(const struct transfer *t) {
    if (guard_holds(t)) return true;
    t->cpe->line = t->line;
    fail(t->cpe, "launch-fault", "race: the program wrote to LDM that the RMA %s of this line still uses; wait for "
         "its reply word first", t->op == EMU_GET ? "get" : "put");
    return false;
}

static void ended(struct transfer *t, double when) {
    t->complete = true;
    if (t->blocking) cpe_wake(t->cpe, when);
    else replied(t->cpe, t->reply, when);
}

static void local_end(void *object, int argument) {
    (void)argument;
    ended(object, clock_now);
}

/* A put arrived at CPE `target`; `main` is the remote address as the sender writes it. */
static void put_arrived(void *object, int target) {
    struct transfer *t = object;
    struct cpe *to = &cpes[target];
    if (!intact(t)) return;
    char *at = translated(t->main, t->cpe, to);
    if (!overlap_check(to, at, t->len, true, "arriving RMA put")) return;
    memmove(at, t->ldm, (size_t)t->len);
    volatile int *word = t->remote_reply;
    if (word)
        replied(to, word == &t->cpe->coll ? &to->coll : translated((void *)word, t->cpe, to), clock_now);
    if (--t->acks == 0) event_at(clock_now + chip.rma_reply_cycles, local_end, t, 0);
}

static void get_arrived(void *object, int target) {
    struct transfer *t = object;
    if (!intact(t)) return;
    memmove(t->ldm, translated(t->main, t->cpe, &cpes[target]), (size_t)t->len);
    ended(t, clock_now);
}

/* A get's request reached CPE `target`, which sends the data back. */
static void get_asked(void *object, int target) {
    struct transfer *t = object;
    struct cpe *from = &cpes[target];
    double leaves = flow(stop_of(from), stop_of(t->cpe), t->len, clock_now);
    volatile int *word = t->remote_reply;
    if (word) reply_at(leaves + length_cycles(t->len), from, translated((void *)word, t->cpe, from));
    event_at(leaves + mesh_cycles(from, t->cpe) + length_cycles(t->len), get_arrived, t, target);
}

static struct transfer *begun(int line, int op, void *local, void *remote, long len, volatile int *l_reply,
                              volatile int *r_reply) {
    struct cpe *c = running;
    cpe_settle(c);
    c->line = line;
    struct transfer *t = transfer_new(c);
    t->rma = true;
    t->op = op;
    t->ldm = local;
    t->main = remote;
    t->len = len;
    t->reply = l_reply;
    t->remote_reply = r_reply;
    if (len <= 0 || len > (long)chip.dma_most_nbytes)
        fail(c, "launch-fault", "RMA of %ld bytes: a request takes 1 to %.0f bytes", len, chip.dma_most_nbytes);
    place_check(c, local, len, "RMA");
    place_check(c, remote, len, "RMA");
    overlap_check(c, local, len, op == EMU_GET, op == EMU_GET ? "RMA get" : "RMA put");
    return t;
}

static void finish(struct transfer *t) {
    if (!t->reply) {
        await_call(t);
    } else {
        if (t->reply != &t->cpe->coll) guard(t);
        transfer_track(t);
    }
}

int emu_rma(int line, int op, int target, void *local, void *remote, long len, volatile int *l_reply,
            volatile int *r_reply) {
    struct transfer *t = begun(line, op, local, remote, len, l_reply, r_reply);
    if (target < 0 || target >= CPES)
        fail(t->cpe, "launch-fault", "RMA to CPE %d, which is out of the core group: there are 0 to %d", target,
             CPES - 1);
    struct cpe *c = t->cpe, *other = &cpes[target];
    if (op == EMU_PUT) {
        double leaves = flow(stop_of(c), stop_of(other), len, c->now);
        t->acks = 1;
        event_at(leaves + mesh_cycles(c, other) + length_cycles(len), put_arrived, t, target);
    } else {
        event_at(c->now + mesh_cycles(c, other), get_asked, t, target);
    }
    finish(t);
    return 0;
}

int emu_rma_bcast(int line, int mode, unsigned mask, int self, void *dst, void *src, long len,
                  volatile int *l_reply, volatile int *r_reply) {
    struct transfer *t = begun(line, EMU_PUT, src, dst, len, l_reply, r_reply);
    struct cpe *c = t->cpe;
    t->receivers = members_of(c, mode, mask);
    if (!self) t->receivers &= ~((uint64_t)1 << c->self.pen);
    double leaves = flow(stop_of(c), -1, len, c->now);
    t->acks = __builtin_popcountll(t->receivers);
    for (int i = 0; i < CPES; i++)
        if (t->receivers >> i & 1)
            event_at(leaves + mesh_cycles(c, &cpes[i]) + length_cycles(len), put_arrived, t, i);
    if (!t->acks) event_at(c->now, local_end, t, 0);
    finish(t);
    return 0;
}

int emu_rma_bcast_coll(int line, int mode, void *dst, void *src, long len, int root) {
    struct cpe *c = running;
    c->coll = 0;
    emu_sync(line, mode, 0xff);
    int me = mode == EMU_ROW ? c->self.col : mode == EMU_COL ? c->self.row : c->self.pen;
    unsigned mask = mode == EMU_ROW ? 1u << c->self.row : 1u << c->self.col;
    if (me == root) emu_rma_bcast(line, mode, mask, 1, dst, src, len, NULL, &c->coll);
    emu_wait_value(line, &c->coll, 1);
    return emu_sync(line, mode, 0xff);
}
