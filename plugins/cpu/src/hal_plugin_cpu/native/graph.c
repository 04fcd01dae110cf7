/* Replaying a recorded graph: the workers hand its commands on by themselves. */
#include "runtime.h"

#define NO_MEMORY_FAILURE 2

void hc_graph_dispose(hc_graph *g) {
    for (int i = 0; i < g->nobjects; i++) hc_drop(g->objects[i]);
    g->nobjects = 0;
}

void hc_graph_destroy(hc_graph *g) {
    while (g->idle) {
        hc_graph_state *next = g->idle->next;
        free(g->idle);
        g->idle = next;
    }
    free(g->objects);
    free(g->items);
    free(g->pending);
    free(g->successors);
    free(g->first);
    free(g->args_at);
    free(g->patches);
}

static hc_graph_state *new_state(hc_graph *g) {
    size_t items = g->ncommands * sizeof(hc_item), args = g->nargs * sizeof(uint64_t);
    hc_graph_state *s = malloc(sizeof *s + items + args + g->ncommands * sizeof(int32_t));
    if (!s) return NULL;
    s->items = (hc_item *)(s + 1);
    s->args = (uint64_t *)((char *)s->items + items);
    s->pending = (int32_t *)((char *)s->args + args);
    memcpy(s->items, g->items, items);
    for (int i = 0; i < g->ncommands; i++)
        if (g->args_at[i] >= 0) {
            hc_launchable *l = g->items[i].launchable;
            memcpy(s->args + g->args_at[i], l->args, l->nargs * sizeof(uint64_t));
            s->items[i].args = s->args + g->args_at[i];
        }
    return s;
}

static hc_graph_state *take_state(hc_graph *g) {
    hc_graph_state *s = g->idle;
    if (!s) return new_state(g);
    g->idle = s->next;
    return s;
}

/* The state goes back to its graph for the next replay. */
void hc_graph_recycle(hc_op *op) {
    op->state->next = op->graph->idle;
    op->graph->idle = op->state;
    op->state = NULL;
}

/* Commands that have no work are done at once, and their successors may have none either: a list of them, since a
 * chain of calls would need as much stack as the graph has commands. */
static hc_item *release_command(hc_device *dev, hc_op *op, int command, hc_item *empty) {
    hc_item *item = &op->state->items[command];
    if (item->total > 0 && command < op->limit) {
        hc_ready(dev, item);
        return empty;
    }
    item->next = empty;
    return item;
}

/* A command is done: those that it alone held back become ready, or are added to the list. */
static hc_item *pass_on(hc_device *dev, hc_op *op, int command, hc_item *empty) {
    hc_graph *g = op->graph;
    op->state->remaining--;
    for (int i = g->first[command]; i < g->first[command + 1]; i++) {
        int next = g->successors[i];
        if (--op->state->pending[next] == 0) empty = release_command(dev, op, next, empty);
    }
    return empty;
}

static void finish_empty(hc_device *dev, hc_op *op, hc_item *empty) {
    while (empty) {
        hc_item *item = empty;
        empty = item->next;
        item->start_ns = hc_now();
        hc_add_span(dev, item, item->start_ns, 0);
        empty = pass_on(dev, op, item->command, empty);
    }
}

void hc_graph_advance(hc_device *dev, hc_op *op, int command) {
    finish_empty(dev, op, pass_on(dev, op, command, NULL));
}

void hc_graph_begin(hc_device *dev, hc_op *op) {
    hc_graph *g = op->graph;
    hc_graph_state *s = op->state = take_state(g);
    if (!s) {
        hc_op_done(dev, op, NO_MEMORY_FAILURE);
        return;
    }
    s->remaining = g->ncommands;
    memcpy(s->pending, g->pending, g->ncommands * sizeof *s->pending);
    for (int i = 0; i < g->ncommands; i++) s->items[i].op = op;
    for (int i = 0; i < g->npatches; i++) {
        hc_patch *p = &g->patches[i];
        s->args[g->args_at[p->command] + p->param] = op->slots[p->slot];
    }
    hc_item *empty = NULL;
    for (int i = 0; i < g->ncommands; i++)
        if (g->pending[i] == 0) empty = release_command(dev, op, i, empty);
    finish_empty(dev, op, empty);
    if (s->remaining == 0) hc_op_done(dev, op, op->fault >> 3);
}

static int capture(hc_device *dev, hc_op *op, int slot, hc_arg arg) {
    op->slots[slot] = arg.bits;
    if (!arg.buffer) return 0;
    op->slots[slot] += (uint64_t)(uintptr_t)arg.buffer->data;
    return hc_op_use(dev, op, arg.buffer);
}

int64_t hc_replay(hc_device *dev, hc_graph *g, int nslots, hc_arg *slots, hc_timeline *timeline, int nwaits,
                  hc_point *waits, int64_t fault) {
    if (atomic_load(&dev->forked)) return HC_FORKED;
    if (nslots != g->nslots) return HC_INVALID;
    hc_op *op = hc_op_new(HC_OP_GRAPH, nwaits, nslots + 1, nslots);
    if (!op) return HC_NO_MEMORY;
    int error = hc_op_use(dev, op, g);
    if (!error) op->graph = g;
    for (int i = 0; i < nslots && !error; i++) error = capture(dev, op, i, slots[i]);
    if (error) {
        hc_op_discard(op);
        return error;
    }
    return hc_submit(dev, op, timeline, nwaits, waits, fault);
}
