/* Runs a rank's part of a chunk program in one call: messages move as links take them, a step begins once those that it
 * waits for are complete. */
#include "program.h"
#include <sched.h>

void he_program_free(he_program *p) {
    if (!p) return;
    free(p->waits);
    free(p->out);
    free(p->sends);
    free(p);
}

/* One piece of memory for all numbers, one for the flows, one for what is waited for. */
static int allot(he_program *p, int n, int64_t nafter, int size) {
    p->waits = calloc(4 * (size_t)n + 1 + nafter, sizeof *p->waits);
    p->out = calloc(2 * (size_t)size, sizeof *p->out);
    p->sends = calloc(2 * (size_t)size, 1);
    if (!p->waits || !p->out || !p->sends) return 0;
    p->first = p->waits + n;
    p->ready = p->first + n + 1;
    p->messages = p->ready + n;
    p->successors = p->messages + n;
    p->in = p->out + size;
    p->receives = p->sends + size;
    return 1;
}

static void link_successors(he_program *p) {
    for (int i = 0; i < p->n; i++)
        for (int64_t k = p->steps[i].after_start; k < p->steps[i].after_stop; k++) p->first[p->after[k] + 1]++;
    for (int i = 0; i < p->n; i++) p->first[i + 1] += p->first[i];
    for (int i = 0; i < p->n; i++)
        for (int64_t k = p->steps[i].after_start; k < p->steps[i].after_stop; k++) {
            int earlier = (int)p->after[k];
            p->successors[p->first[earlier] + p->waits[earlier]++] = i; /* `waits` counts those written so far */
        }
    for (int i = 0; i < p->n; i++) p->waits[i] = (int)(p->steps[i].after_stop - p->steps[i].after_start);
}

static he_flow *flow_of(he_program *p, int i) {
    const he_step *s = &p->steps[i];
    return s->peer < 0 ? NULL : s->op == HE_STEP_SEND ? &p->out[s->peer] : &p->in[s->peer];
}

static void list_messages(he_program *p, int size) {
    int at = 0;
    for (int i = 0; i < p->n; i++)
        if (flow_of(p, i)) flow_of(p, i)->n++;
    for (int f = 0; f < 2 * size; f++) {
        p->out[f].steps = p->messages + at;
        at += p->out[f].n;
        p->out[f].n = 0;
    }
    for (int i = 0; i < p->n; i++)
        if (flow_of(p, i)) flow_of(p, i)->steps[flow_of(p, i)->n++] = i;
}

he_program *he_program_new(he_group *g, const he_route *route) {
    int n = (int)route->nsteps;
    he_program *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    if (!allot(p, n, route->nafter, g->size)) {
        he_program_free(p);
        return NULL;
    }
    p->steps = (const he_step *)route->steps;
    p->after = route->after;
    p->n = p->left = n;
    p->scratch_count = route->scratch_count;
    link_successors(p);
    list_messages(p, g->size);
    for (int i = 0; i < n; i++)
        if (!p->waits[i] && p->steps[i].peer < 0) p->ready[p->nready++] = i;
    return p;
}

static void complete(he_program *p, int i) {
    p->left--;
    for (int k = p->first[i]; k < p->first[i + 1]; k++) {
        int next = p->successors[k];
        if (!--p->waits[next] && p->steps[next].peer < 0) p->ready[p->nready++] = next;
    }
}

/* The step whose message is next in the flow and may begin; -1 without one. */
static int head_of(const he_program *p, const he_flow *f) {
    return f->next < f->n && !p->waits[f->steps[f->next]] ? f->steps[f->next] : -1;
}

static void begin(he_flow *f, const he_work *w, const he_step *s) {
    if (f->begun) return;
    f->begun = 1;
    f->transfer = he_transfer_of(&w->call, s->message, s->count * he_message_nbytes(w, s));
}

static void end(he_program *p, he_flow *f, int i) {
    f->begun = 0;
    f->next++;
    complete(p, i);
}

static int send_to(he_group *g, const he_work *w, int peer, int *moved) {
    he_program *p = w->program;
    he_flow *f = &p->out[peer];
    int last = -1;
    for (int i; (i = head_of(p, f)) >= 0 && i != last; last = i) {
        const he_step *s = &p->steps[i];
        begin(f, w, s);
        const unsigned char *data = p->places[s->src_place] + s->src * he_place_nbytes(w, (int)s->src_place);
        int code = he_send(g, HE_PROGRAMS, peer, &f->transfer, data, moved);
        if (code) return code;
        if (he_is_done(&f->transfer)) end(p, f, i);
    }
    return HE_OK;
}

typedef struct {
    he_group *g;
    const he_work *w;
    const he_step *step;
} he_receiving;

static void sink(void *context, int64_t at, int64_t n, const unsigned char *bytes) {
    const he_receiving *r = context;
    he_block(r->g, r->w, r->step, at, n, bytes);
}

static int receive_from(he_group *g, const he_work *w, int peer, int *moved) {
    he_program *p = w->program;
    he_flow *f = &p->in[peer];
    int last = -1;
    for (int i; (i = head_of(p, f)) >= 0 && i != last; last = i) {
        he_receiving r = {g, w, &p->steps[i]};
        begin(f, w, r.step);
        int code = he_receive(g, HE_PROGRAMS, peer, &f->transfer, he_message_nbytes(w, r.step), sink, &r, moved);
        if (code) return code;
        if (he_is_done(&f->transfer)) end(p, f, i);
    }
    return HE_OK;
}

/* Does what can be done now. */
static int turn(he_group *g, const he_work *w, int *moved) {
    he_program *p = w->program;
    int code = HE_OK;
    *moved = 0;
    for (; p->nready > 0; *moved = 1) {
        int i = p->ready[--p->nready];
        he_local(g, w, &p->steps[i]);
        complete(p, i);
    }
    for (int k = 1; k < g->size && !code; k++) {
        int to = (g->rank + k) % g->size, from = (g->rank + g->size - k) % g->size;
        code = send_to(g, w, to, moved);
        if (!code) code = receive_from(g, w, from, moved);
    }
    return code;
}

static he_call last_of(he_group *g, int rank, int *done) {
    return he_last_read(g->peers[rank].remote ? &g->peers[rank].last : &g->ends[g->index[rank]].last, done);
}

/* The one that it waits for may itself wait for another: the late rank is the one whose last call is the oldest. */
static int late(he_group *g, const he_work *w, int waited) {
    int done, rank = waited < 0 ? g->rank : waited;
    for (int r = 0; r < g->size; r++) {
        int64_t theirs = last_of(g, r, &done).sequence;
        if (theirs < w->call.sequence && theirs < last_of(g, rank, &done).sequence) rank = r;
    }
    he_call last = last_of(g, rank, &done);
    return he_fail_late(g, rank, &w->call, &last, done);
}

/* Notes whom it waits for. The first one is named when that takes too long; one to receive from before one to send to. */
static int waited_for(he_group *g, he_program *p) {
    int found = -1;
    for (int r = 0; r < g->size; r++) {
        p->sends[r] = head_of(p, &p->out[r]) >= 0;
        p->receives[r] = head_of(p, &p->in[r]) >= 0;
        if (p->receives[r] || (found < 0 && p->sends[r])) found = found >= 0 && p->receives[found] ? found : r;
    }
    return found;
}

static int check(he_group *g, const he_work *w, int64_t limit_ns) {
    he_program *p = w->program;
    int code = he_look(g), rank = waited_for(g, p);
    if (code) return code;
    for (int r = 0; r < g->size; r++)
        if (p->receives[r] && he_is_away(g, HE_PROGRAMS, r)) {
            int moved = 0;
            if (turn(g, w, &moved) || moved) return he_look(g); /* what it sent before it left counts */
            return he_fail(g, HE_LEFT, r, g->rank, &w->call, NULL, 0);
        }
    if (he_now() - p->moved_ns < limit_ns) return HE_OK;
    return w->budget_ns ? HE_PENDING : late(g, w, rank);
}

/* Nothing moves: looks again for a moment, then sleeps. */
static int pause_for(he_group *g, he_work *w) {
    he_program *p = w->program;
    he_interest interest = {p->sends, p->receives};
    int moved = 0, code = HE_OK;
    if (he_now() - p->moved_ns < he_spin_ns(g)) {
        sched_yield();
        return HE_OK;
    }
    uint32_t bell = he_bell(g, HE_PROGRAMS);
    code = turn(g, w, &moved);
    if (!code && !moved && p->left && !(code = check(g, w, w->budget_ns ? w->budget_ns : w->timeout_ns)))
        he_lane_sleep(g, HE_PROGRAMS, bell, &interest);
    __atomic_store_n(&g->ends[g->here].asleep[HE_PROGRAMS], 0, __ATOMIC_RELEASE);
    if (moved) p->moved_ns = he_now();
    return code;
}

static int prepare(he_group *g, he_work *w) {
    he_program *p = w->program;
    p->places[HE_SCRATCH] = he_scratch(g, p->scratch_count * 8);
    if (p->scratch_count && !p->places[HE_SCRATCH]) return he_fail(g, HE_NO_MEMORY, g->rank, g->rank, &w->call, NULL, 0);
    p->places[HE_INPUT] = (unsigned char *)w->src;
    p->places[HE_OUTPUT] = w->dst;
    p->moved_ns = he_now();
    return HE_OK;
}

static void tell(he_group *g, he_work *w) {
    w->call.sequence = g->sequence++;
    he_last_write(&g->ends[g->here].last, &w->call);
    w->shown = 1;
}

/* HE_PENDING when nothing has moved for the budget. */
int he_program_run(he_group *g, he_work *w) {
    he_program *p = w->program;
    int code = he_look(g), moved;
    if (!code && !w->shown) {
        tell(g, w);
        code = prepare(g, w);
    }
    while (!code && p->left && !(code = he_look(g))) { /* each time: much may move still without the rank that is lost */
        code = turn(g, w, &moved);
        if (moved) p->moved_ns = he_now();
        if (!code && !moved && p->left) code = pause_for(g, w);
    }
    atomic_store_explicit(&g->way, HE_BY_PROGRAM, memory_order_relaxed);
    if (!code) he_last_ended(&g->ends[g->here].last, (uint64_t)w->call.sequence + 1);
    return code;
}
