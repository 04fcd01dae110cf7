/* Runs of the core group: a launch of 64 CPEs, or a host program that starts them itself. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "emu.h"

static struct program *slave_program;
static int spawned;

static void reset(void) {
    events_clear();
    memory_reset();
    mesh_reset();
    sync_reset();
    fail_clear();
    moved_get = moved_put = 0;
    for (int i = 0; i < CONTEXTS; i++) cpes[i].state = IDLE;
}

static bool all_ended(void) {
    for (int i = 0; i < CONTEXTS; i++)
        if (cpes[i].state != IDLE && cpes[i].state != ENDED) return false;
    return true;
}

/* Nobody wants the answer of a host that has ended: neither does this process go on. */
static void look_for_host(void) {
    static unsigned events;
    if (++events % (1u << 16) == 0 && host_gone()) _exit(1);
}

static bool drive(struct outcome *out) {
    while (!failed() && event_next()) look_for_host();
    if (!failed() && !all_ended()) fail_deadlock();
    memset(out, 0, sizeof *out);
    for (int i = 0; i < CPES; i++) {
        const struct cpe *c = &cpes[i];
        if (out->cycles < c->now && c->state == ENDED) out->cycles = c->now;
        out->busy += c->busy;
        out->dma_wait += c->dma_wait;
        out->sync_wait += c->sync_wait;
        out->flops += c->flops;
    }
    out->get_nbytes = moved_get;
    out->put_nbytes = moved_put;
    if (failed()) {
        memory_reset(); /* before the transfers that it still holds go */
        cpes_abandon();
    }
    ldm_end();
    return !failed();
}

bool group_launch(struct program *p, void (*entry)(void *), void *argument, struct outcome *out) {
    reset();
    program_begin(p, false);
    for (int i = 0; i < CPES; i++) cpe_start(&cpes[i], chip.spawn_cycles, entry, argument);
    bool well = drive(out);
    out->cycles += chip.join_cycles;
    return well;
}

/* A name as athread_spawn's argument spells it: with or without the prefix of slave functions. */
static void plain_name(const char *spelled, char *name, size_t size) {
    const char *from = strstr(spelled, "SLAVE_FUN(");
    from = from ? from + strlen("SLAVE_FUN(") : spelled;
    from += strspn(from, " (&");
    if (!strncmp(from, "slave_", 6)) from += 6;
    size_t n = strcspn(from, " )");
    snprintf(name, size, "%.*s", (int)n, from);
}

int emu_spawn(int line, const char *spelled, void *argument) {
    char name[256];
    struct cpe *mpe = running;
    mpe->line = line;
    plain_name(spelled, name, sizeof name);
    void *symbol = program_symbol(slave_program, name);
    if (!symbol) fail(mpe, "launch-fault", "athread_spawn: the slave part has no function %s", name);
    if (spawned) fail(mpe, "launch-fault", "athread_spawn while the CPEs still run: call athread_join first");
    spawned = 1;
    void (*entry)(void *);
    memcpy(&entry, &symbol, sizeof entry);
    for (int i = 0; i < CPES; i++) cpe_start(&cpes[i], mpe->now + chip.spawn_cycles, entry, argument);
    return 0;
}

/* Let the MPE go on behind athread_join if it waits there and every CPE has ended. */
void group_cpe_ended(void) {
    struct cpe *mpe = &cpes[MPE];
    if (mpe->state != WAITING || mpe->wait != FOR_JOIN) return;
    double last = mpe->now;
    for (int i = 0; i < CPES; i++) {
        if (cpes[i].state != ENDED) return;
        if (last < cpes[i].now) last = cpes[i].now;
    }
    cpe_wake(mpe, last + chip.join_cycles);
}

int emu_join(int line) {
    struct cpe *mpe = running;
    mpe->line = line;
    if (!spawned) fail(mpe, "launch-fault", "athread_join without athread_spawn before it");
    spawned = 0;
    mpe->state = WAITING;
    mpe->wait = FOR_JOIN;
    group_cpe_ended();
    cpe_yield();
    return 0;
}

unsigned long emu_mpe_cycles(void) { return (unsigned long)(running->now / chip.cpe_hz * chip.mpe_hz); }

static int host_status;

static void host_main(void *argument) {
    int (*entry)(void);
    memcpy(&entry, &argument, sizeof entry);
    host_status = entry();
    if (spawned) fail(running, "launch-fault", "main returns without athread_join for the CPEs that it started");
    if (host_status) fail(running, "status", "main returned %d", host_status);
}

bool group_host(struct program *host, struct program *slaves, struct outcome *out) {
    reset();
    spawned = 0;
    slave_program = slaves;
    void *symbol = program_symbol(host, "main");
    if (!symbol) return fail(NULL, "launch-fault", "the host part has no main"), false;
    program_begin(slaves, true);
    cpe_start(&cpes[MPE], 0, host_main, symbol);
    bool well = drive(out);
    if (out->cycles < cpes[MPE].now) out->cycles = cpes[MPE].now;
    return well;
}
