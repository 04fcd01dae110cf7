/* The way of a DMA request: mesh stop, memory controller, rows of the memory, and back.
 *
 * A request is served in bursts of a few lines, by turns with the others. What makes the measured
 * curves: the latency of the path and of the memory; a mesh stop that four CPEs share; the
 * controller's bus; the opening of rows, which reads hide behind each other and writes do not that
 * find their row closed by another stream; a queue in which so many lines of writes are posted; and lines written in
 * part, which are read first. */
#include <stdlib.h>
#include <string.h>

#include "emu.h"

enum { MOST_BANKS = 1024 };

struct burst { /* of a request; `next` links those in a queue */
    struct transfer *request;
    long lines, partial, row;
    bool first, last, write, posted, ahead; /* ahead: the request goes on into a new row */
    struct burst *next;
};
struct queue {
    struct burst *head, *tail;
};
struct waiting { /* requests with bursts that wait for a place in the queue of writes */
    struct transfer *head, *tail;
};

static struct queue at_stop[STOPS], at_controller;
static struct waiting unposted;
static bool stop_busy[STOPS], controller_busy;
static double stop_free[STOPS];
static long backlog, open_row[MOST_BANKS];
static struct burst *spare;

static struct burst *burst_new(void) {
    struct burst *b = spare;
    if (b) spare = b->next;
    else if (!(b = malloc(sizeof *b))) abort();
    memset(b, 0, sizeof *b);
    return b;
}

static void burst_free(struct burst *b) {
    b->next = spare;
    spare = b;
}

static void push(struct queue *q, struct burst *b) {
    b->next = NULL;
    if (q->head) q->tail->next = b;
    else q->head = b;
    q->tail = b;
}

static struct burst *pop(struct queue *q) {
    struct burst *b = q->head;
    q->head = b->next;
    return b;
}

static void drain(struct queue *q) {
    while (q->head) burst_free(pop(q));
}

static void push_unposted(struct burst *b) {
    struct transfer *t = b->request;
    bool waits = t->first != NULL;
    b->next = NULL;
    if (waits) t->last->next = b;
    else t->first = b;
    t->last = b;
    if (waits) return;
    t->after = NULL;
    if (unposted.head) unposted.tail->after = t;
    else unposted.head = t;
    unposted.tail = t;
}

/* The requests have turns: of each the next burst, then it stands behind the others. */
static struct burst *next_unposted(void) {
    struct transfer *t = unposted.head;
    struct burst *b = t->first;
    unposted.head = t->after;
    t->first = b->next;
    if (t->first) {
        t->after = NULL;
        if (unposted.head) unposted.tail->after = t;
        else unposted.head = t;
        unposted.tail = t;
    }
    return b;
}

static double line_cycles(void) {
    double nbytes_cycle = chip.memory_nbytes_s / chip.cpe_hz * (1 - chip.lost_share);
    return chip.line_nbytes / nbytes_cycle;
}

/* Rows by the place in the arena, and elsewhere by the order of their first use in a run: where the host
 * has put its memory must not matter. */
static const char *arena;
static long arena_nbytes;
static struct page {
    uintptr_t place;
    long row;
} *pages;
static size_t page_count, page_room;

void memory_arena(const char *base, long nbytes) {
    arena = base;
    arena_nbytes = nbytes;
}

static struct page *page_slot(uintptr_t place) {
    size_t i = place * 0x9E3779B97F4A7C15u >> 20;
    for (i %= page_room; pages[i].place && pages[i].place != place; i = (i + 1) % page_room) continue;
    return &pages[i];
}

static void grow_pages(void) {
    struct page *old = pages;
    size_t room = page_room;
    page_room = room ? 2 * room : 1024;
    if (!(pages = calloc(page_room, sizeof *pages))) abort();
    for (size_t i = 0; i < room; i++)
        if (old[i].place) *page_slot(old[i].place) = old[i];
    free(old);
}

static long row_of(uintptr_t place) {
    if (place - (uintptr_t)arena < (uintptr_t)arena_nbytes)
        return (long)((place - (uintptr_t)arena) / (uintptr_t)chip.row_nbytes);
    if (2 * page_count >= page_room) grow_pages();
    uintptr_t number = place / (uintptr_t)chip.row_nbytes;
    struct page *p = page_slot(number);
    if (!p->place) {
        p->place = number;
        p->row = arena_nbytes / (long)chip.row_nbytes + (long)++page_count;
    }
    return p->row;
}

static void forget_pages(void) {
    if (page_count) memset(pages, 0, page_room * sizeof *pages);
    page_count = 0;
}

void memory_reset(void) {
    for (int i = 0; i < STOPS; i++) {
        drain(&at_stop[i]);
        stop_busy[i] = false;
        stop_free[i] = 0;
    }
    drain(&at_controller);
    while (unposted.head) {
        struct burst *b = next_unposted();
        burst_free(b);
    }
    forget_pages();
    controller_busy = false;
    backlog = 0;
    for (int i = 0; i < MOST_BANKS; i++) open_row[i] = -1;
}

/* The next burst of a request: lines of one block and one row. */
static void advance(struct burst *b) {
    struct transfer *t = b->request;
    long line = (long)chip.line_nbytes, bsize = t->bsize;
    uintptr_t block = (uintptr_t)t->main + (uintptr_t)(t->block * (bsize + t->stride));
    long left = t->len - t->block * bsize;
    uintptr_t end = block + (uintptr_t)(left < bsize ? left : bsize);
    uintptr_t from = block + (uintptr_t)t->within;
    uintptr_t to = from / (uintptr_t)line * (uintptr_t)line + (uintptr_t)(line * (long)chip.burst_lines);
    uintptr_t row_end = (from / (uintptr_t)chip.row_nbytes + 1) * (uintptr_t)chip.row_nbytes;
    if (to > row_end) to = row_end;
    if (to > end) to = end;
    b->first = !t->block && !t->within;
    b->lines = (long)((to - 1) / (uintptr_t)line - from / (uintptr_t)line + 1);
    b->row = row_of(from);
    b->ahead = !b->first && b->row != t->row;
    t->row = b->row;
    b->partial = 0;
    if (t->op == EMU_PUT) {
        b->partial = (from % (uintptr_t)line != 0) + (to % (uintptr_t)line != 0);
        if (b->partial > b->lines) b->partial = b->lines;
    }
    t->within += (long)(to - from);
    if (to == end) {
        t->block++;
        t->within = 0;
    }
    b->last = t->block * bsize >= t->len;
}

/* Pages lie scattered, so rows fall on banks as if by chance. */
static bool opens_row(long row) {
    uint64_t h = (uint64_t)row * 0x9E3779B97F4A7C15u;
    h ^= h >> 31;
    h *= 0xBF58476D1CE4E5B9u;
    long bank = (long)((h >> 33) % (uint64_t)chip.banks);
    bool opens = open_row[bank] != row;
    open_row[bank] = row;
    return opens;
}

static double service_cycles(const struct burst *b) {
    double whole = (double)(b->lines - b->partial) * line_cycles();
    bool opens = opens_row(b->row);
    if (b->write)
        return whole + (double)b->partial * chip.partial_line_cycles +
               (opens && !b->ahead ? (double)b->lines * chip.write_row_cycles : 0);
    if (opens && whole < chip.row_open_cycles) whole = chip.row_open_cycles;
    return whole + (b->first ? chip.request_cycles : 0);
}

static void served(void *object, int argument);

static void serve(double when) {
    if (controller_busy || !at_controller.head) return;
    struct burst *b = pop(&at_controller);
    if (!b->write) advance(b);
    controller_busy = true;
    event_at(when + service_cycles(b), served, b, 0);
}

static void done(void *object, int argument) {
    (void)argument;
    dma_done(object, clock_now);
}

/* The last burst's acknowledgement ends the request: all take equally long. */
static void acknowledge(struct burst *b) {
    struct transfer *t = b->request;
    if (--t->acks == 0 && !t->more) event_at(clock_now + chip.path_cycles / 2, done, t, 0);
}

/* Post what fits into the queue. A line written in part is only done when it is written. */
static void post(void) {
    while (unposted.head &&
           (!backlog || backlog + unposted.head->first->lines <= (long)chip.write_queue_lines)) {
        struct burst *b = next_unposted();
        backlog += b->lines;
        b->posted = !b->partial;
        if (b->posted) acknowledge(b);
        push(&at_controller, b);
    }
    serve(clock_now);
}

static void give_back(struct burst *b) {
    struct transfer *t = b->request;
    int stop = stop_of(t->cpe);
    double from = clock_now + chip.read_cycles;
    if (from < stop_free[stop]) from = stop_free[stop];
    stop_free[stop] = from + (double)b->lines * chip.line_nbytes / chip.get_nbytes_cycle;
    if (b->last) event_at(stop_free[stop] + chip.path_cycles / 2, done, t, 0);
}

static void served(void *object, int argument) {
    struct burst *b = object;
    (void)argument;
    controller_busy = false;
    if (b->write) {
        backlog -= b->lines;
        if (!b->posted) acknowledge(b);
        burst_free(b);
        post();
    } else {
        give_back(b);
        if (b->last) burst_free(b);
        else push(&at_controller, b);
    }
    serve(clock_now);
}

static void arrived(void *object, int argument) {
    (void)argument;
    struct burst *b = object;
    if (b->write) {
        push_unposted(b);
        post();
    } else {
        push(&at_controller, b);
        serve(clock_now);
    }
}

static void left_stop(void *object, int argument);

/* A put leaves through its mesh stop, burst by burst, by turns with others at the stop. */
static void leave(int stop) {
    if (stop_busy[stop] || !at_stop[stop].head) return;
    struct burst *b = pop(&at_stop[stop]);
    advance(b);
    b->request->acks++;
    b->request->more = !b->last;
    stop_busy[stop] = true;
    double cycles = (double)b->lines * chip.line_nbytes / chip.put_nbytes_cycle;
    event_at(clock_now + cycles, left_stop, b, stop);
}

static void left_stop(void *object, int stop) {
    struct burst *b = object;
    stop_busy[stop] = false;
    event_at(clock_now + chip.path_cycles / 2, arrived, b, 0);
    if (!b->last) {
        struct burst *more = burst_new();
        more->request = b->request;
        more->write = true;
        push(&at_stop[stop], more);
    }
    leave(stop);
}

static void at_port(void *object, int stop) {
    push(&at_stop[stop], object);
    leave(stop);
}

void memory_begin(struct transfer *t, double when) {
    struct burst *b = burst_new();
    b->request = t;
    b->write = t->op == EMU_PUT;
    if (b->write) event_at(when, at_port, b, stop_of(t->cpe));
    else event_at(when + chip.path_cycles / 2, arrived, b, 0);
}
