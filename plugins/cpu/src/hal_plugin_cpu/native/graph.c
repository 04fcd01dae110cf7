/* Recorded graphs: commands with their dependencies, replayed by the workers alone. */
#include "runtime.h"

#define NO_MEMORY_FAILURE 2

typedef struct { int32_t *from, *to; int n, room; } edges;

static int add_edge(edges *e, int from, int to) {
    if (e->n == e->room) {
        int room = e->room ? e->room * 2 : 64;
        int32_t *a = realloc(e->from, room * sizeof *a);
        if (a) e->from = a;
        int32_t *b = realloc(e->to, room * sizeof *b);
        if (b) e->to = b;
        if (!a || !b) return HC_NO_MEMORY;
        e->room = room;
    }
    e->from[e->n] = from;
    e->to[e->n++] = to;
    return 0;
}

/* A command after all earlier ones needs edges only from those that nothing follows yet. */
static int after_all(edges *e, char *open, int command) {
    int error = 0;
    for (int i = 0; i < command && !error; i++)
        if (open[i]) {
            open[i] = 0;
            error = add_edge(e, i, command);
        }
    return error;
}

static int after_some(edges *e, char *open, int command, const hc_command *c) {
    int error = 0;
    for (int i = 0; i < c->after_count && !error; i++) {
        if (c->after[i] < 0 || c->after[i] >= command) return HC_INVALID;
        open[c->after[i]] = 0;
        error = add_edge(e, c->after[i], command);
    }
    return error;
}

static void sort_edges(hc_graph *g, const edges *e) {
    for (int i = 0; i < e->n; i++) {
        g->pending[e->to[i]]++;
        g->first[e->from[i] + 1]++;
    }
    for (int i = 0; i < g->ncommands; i++) g->first[i + 1] += g->first[i];
    for (int i = e->n - 1; i >= 0; i--) g->successors[--g->first[e->from[i] + 1]] = e->to[i];
    memmove(g->first, g->first + 1, g->ncommands * sizeof *g->first);
    g->first[g->ncommands] = e->n;
}

static int connect(hc_graph *g, hc_command *commands) {
    edges e = {0};
    char *open = malloc(g->ncommands + 1);
    int error = open ? 0 : HC_NO_MEMORY;
    for (int i = 0; i < g->ncommands && !error; i++) {
        hc_command *c = &commands[i];
        error = c->after_count < 0 ? after_all(&e, open, i) : after_some(&e, open, i, c);
        open[i] = 1;
    }
    if (!error) g->successors = malloc((e.n + 1) * sizeof *g->successors);
    if (!error && !g->successors) error = HC_NO_MEMORY;
    if (!error) sort_edges(g, &e);
    free(e.from);
    free(e.to);
    free(open);
    return error;
}

static int keep(hc_device *dev, hc_graph *g, void *object) {
    int error = ((hc_object *)object)->type == HC_BUFFER ? hc_acquire_region(dev, object)
                                                         : hc_acquire(dev, object);
    if (!error) g->objects[g->nobjects++] = object;
    return error;
}

static int set_launch(hc_device *dev, hc_graph *g, hc_item *item, hc_command *c) {
    hc_launchable *l = c->launchable;
    int error = hc_grid_fits(c->grid[0], c->grid[1], c->grid[2]) ? keep(dev, g, l) : HC_INVALID;
    if (!error) error = keep(dev, g, l->program);
    for (int i = 0; i < l->nbuffers && !error; i++) error = keep(dev, g, l->buffers[i]);
    item->run = HC_RUN_LAUNCH;
    item->name = l->program->name;
    item->launchable = l;
    item->args = l->args;
    for (int i = 0; i < 3; i++) item->grid[i] = c->grid[i];
    item->total = item->grid[0] * item->grid[1] * item->grid[2];
    return error;
}

static int set_transfer(hc_device *dev, hc_graph *g, hc_item *item, hc_command *c) {
    int error = keep(dev, g, c->dst);
    if (!error && c->src) error = keep(dev, g, c->src);
    if (error) return error;
    item->run = c->src ? HC_RUN_COPY : HC_RUN_FILL;
    item->name = c->src ? -1 : -2;
    item->dst = c->dst->data + c->dst_offset;
    item->src = c->src ? c->src->data + c->src_offset : NULL;
    item->pattern = hc_widen(c->pattern, c->pattern_nbytes);
    item->nbytes = c->nbytes;
    item->total = hc_pieces(c->nbytes);
    return 0;
}

static int room(hc_graph *g, hc_command *commands) {
    int64_t objects = 0;
    int n = g->ncommands;
    for (int i = 0; i < n; i++) objects += commands[i].launchable ? commands[i].launchable->nbuffers + 2 : 2;
    g->objects = malloc((objects + 1) * sizeof *g->objects);
    g->items = calloc(n + 1, sizeof *g->items);
    g->pending = calloc(n + 1, sizeof *g->pending);
    g->first = calloc(n + 2, sizeof *g->first);
    g->args_at = malloc((n + 1) * sizeof *g->args_at);
    g->patches = malloc((g->npatches + 1) * sizeof *g->patches);
    return g->objects && g->items && g->pending && g->first && g->args_at && g->patches ? 0 : HC_NO_MEMORY;
}

/* Commands with slots get arguments of their own in every state. */
static void place_arguments(hc_graph *g, const hc_patch *patches) {
    memcpy(g->patches, patches, g->npatches * sizeof *patches);
    for (int i = 0; i < g->ncommands; i++) g->args_at[i] = -1;
    for (int i = 0; i < g->npatches; i++) {
        int command = patches[i].command;
        if (g->args_at[command] >= 0) continue;
        g->args_at[command] = g->nargs;
        g->nargs += g->items[command].launchable->nargs;
    }
}

int hc_record(hc_device *dev, int ncommands, hc_command *commands, int npatches, hc_patch *patches, int nslots,
              hc_graph **out) {
    int error = hc_usable(dev);
    hc_graph *g = error ? NULL : calloc(1, sizeof *g);
    if (!g) return error ? error : HC_NO_MEMORY;
    hc_object_init(&g->object, HC_GRAPH, dev);
    g->ncommands = ncommands;
    g->npatches = npatches;
    g->nslots = nslots;
    error = room(g, commands);
    for (int i = 0; i < ncommands && !error; i++) {
        g->items[i].command = i;
        error = commands[i].launchable ? set_launch(dev, g, &g->items[i], &commands[i])
                                       : set_transfer(dev, g, &g->items[i], &commands[i]);
    }
    if (!error) error = connect(g, commands);
    if (!error) place_arguments(g, patches);
    if (error) hc_unref(g);
    else *out = g;
    return error;
}

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

static void finish_empty(hc_device *dev, hc_op *op, hc_item *item);

/* Commands without work are done at once; their successors may be too. */
static void release_command(hc_device *dev, hc_op *op, int command) {
    hc_item *item = &op->state->items[command];
    if (item->total > 0) hc_ready(dev, item);
    else finish_empty(dev, op, item);
}

static void finish_empty(hc_device *dev, hc_op *op, hc_item *item) {
    item->start_ns = hc_now();
    hc_add_span(dev, item, item->start_ns, 0);
    hc_graph_advance(dev, op, item->command);
}

/* A command is done: those that it alone held back become ready. */
void hc_graph_advance(hc_device *dev, hc_op *op, int command) {
    hc_graph *g = op->graph;
    op->state->remaining--;
    for (int i = g->first[command]; i < g->first[command + 1]; i++) {
        int next = g->successors[i];
        if (--op->state->pending[next] == 0) release_command(dev, op, next);
    }
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
    for (int i = 0; i < g->ncommands; i++)
        if (g->pending[i] == 0) release_command(dev, op, i);
    if (s->remaining == 0) hc_op_done(dev, op, 0);
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
