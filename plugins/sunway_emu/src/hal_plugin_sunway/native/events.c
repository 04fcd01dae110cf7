/* The event queue: a binary heap by time, then by number. */
#include <stdlib.h>

#include "emu.h"

struct event {
    double when;
    uint64_t number;
    event_fn run;
    void *object;
    int argument;
};

double clock_now;
static struct event *heap;
static size_t count, room;
static uint64_t numbers;

static bool before(const struct event *a, const struct event *b) {
    return (a->when < b->when) | ((a->when == b->when) & (a->number < b->number));
}

void event_at(double when, event_fn run, void *object, int argument) {
    if (count == room) {
        room = room ? 2 * room : 4096;
        heap = realloc(heap, room * sizeof *heap);
        if (!heap) abort();
    }
    struct event e = {when, numbers++, run, object, argument};
    size_t i = count++;
    for (; i && before(&e, &heap[(i - 1) / 2]); i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = e;
}

/* The hole goes down to a leaf, and what stood last goes up from there: nearly always not far, so that
 * the processor guesses its branches right. */
static struct event taken(void) {
    struct event first = heap[0], last = heap[--count];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) + 1 < count; i = child) {
        child += (size_t)before(&heap[child + 1], &heap[child]);
        heap[i] = heap[child];
    }
    if (2 * i + 1 < count) heap[i] = heap[2 * i + 1], i = 2 * i + 1;
    for (; i && before(&last, &heap[(i - 1) / 2]); i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = last;
    return first;
}

bool event_next(void) {
    if (!count) return false;
    struct event e = taken();
    clock_now = e.when;
    e.run(e.object, e.argument);
    return true;
}

void events_clear(void) {
    count = 0;
    numbers = 0;
    clock_now = 0;
}
