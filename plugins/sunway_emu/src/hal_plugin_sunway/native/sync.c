/* Barriers of the array, of rows and of columns. */
#include <string.h>

#include "emu.h"

struct barrier {
    uint64_t came;
    double latest;
};
static struct barrier barriers[EMU_ARRAY + 1][SIDE];

void sync_reset(void) { memset(barriers, 0, sizeof barriers); }

static uint64_t expected(const struct cpe *c, int mode, unsigned mask) {
    uint64_t all = members_of(c, mode, mode == EMU_ROW ? 1u << c->self.row : 1u << c->self.col), some = 0;
    for (int i = 0; i < CPES; i++) {
        int place = mode == EMU_ROW ? i % SIDE : i / SIDE;
        if (mode == EMU_ARRAY || mask >> place & 1) some |= all & (uint64_t)1 << i;
    }
    return some;
}

static void open_barrier(struct barrier *b) {
    uint64_t came = b->came;
    double when = b->latest + chip.sync_cycles;
    memset(b, 0, sizeof *b);
    for (int i = 0; i < CPES; i++)
        if (came >> i & 1) cpe_wake(&cpes[i], when);
}

int emu_sync(int line, int mode, unsigned mask) {
    struct cpe *c = running;
    cpe_settle(c);
    c->line = line;
    if (mode != EMU_ROW && mode != EMU_COL && mode != EMU_ARRAY)
        fail(c, "launch-fault", "there is no synchronisation of scope %d", mode);
    struct barrier *b = &barriers[mode][mode == EMU_ROW ? c->self.row : mode == EMU_COL ? c->self.col : 0];
    double from = c->now;
    b->came |= (uint64_t)1 << c->self.pen;
    if (b->latest < c->now) b->latest = c->now;
    c->state = WAITING;
    c->wait = FOR_SYNC;
    if (b->came == expected(c, mode, mask)) open_barrier(b);
    cpe_yield();
    c->sync_wait += c->now - from;
    trace_span(c, "wait sync", from, c->now, line);
    return 0;
}

unsigned long emu_cycles(void) {
    cpe_settle(running);
    return (unsigned long)running->now;
}

void emu_mark(const char *name) {
    struct cpe *c = running;
    cpe_settle(c);
    if (c->mark) trace_span(c, c->mark, c->mark_from, c->now, c->line);
    c->mark = name;
    c->mark_from = c->now;
}
