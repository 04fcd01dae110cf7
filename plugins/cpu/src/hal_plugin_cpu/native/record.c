/* Recording a graph: its commands, their arguments and who waits for whom. */
#include "runtime.h"

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
