/* Groups between processes for the sanitizers: the members are of this process, but each maps the shared memory for
 * itself and knows the others by nothing else. */
#include "runtime.h"
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHECK(ok) do { if (!(ok)) { printf("%s:%d: %s\n", __FILE__, __LINE__, #ok); abort(); } } while (0)
#define CALLS 16
#define SIZE 3

enum trouble { NONE, FAILS, LOST, CLOSED };

typedef struct {
    hc_device *dev;
    hc_link *link;
    hc_timeline *timeline;
    hc_buffer *cells;
    hc_call *calls[CALLS];
    int rank;
    enum trouble trouble;
} member;

/* 0 once reached, else the failure. */
static int64_t end_of(member *m, int64_t value) {
    hc_point point = {m->timeline, value};
    int64_t failure = 0;
    int reached = 0;
    for (int first = 1; !reached; first = 0)
        reached = hc_wait(m->dev, 1, &point, 1, first, 20000000, &failure);
    return reached == 1 ? 0 : failure;
}

/* Rank 1 does what the round is about, in the middle of its calls; true when it makes no more of them. */
static int strike(member *m, int call) {
    if (m->rank != 1 || call != CALLS / 2 || m->trouble == NONE) return 0;
    usleep(2000);
    if (m->trouble == FAILS) hc_call_fail(m->dev, m->calls[call], m->rank, 9);
    if (m->trouble == LOST) hc_lose(m->dev, 9, 0);
    return m->trouble != FAILS;
}

static int64_t submit_all(member *m) {
    int64_t value = 0;
    for (int i = 0; i < CALLS; i++) {
        value = hc_collective(m->dev, m->calls[i], m->rank, m->cells, 0, m->cells, 0, m->timeline, 0, NULL, 0);
        CHECK(value > 0);
        if (strike(m, i)) return 0;
    }
    return value;
}

/* What the host side does: fails the calls that cannot go on any more. */
static void look_after(member *m) {
    for (int i = 0; i < CALLS; i++) {
        for (int k = 0; k < 500 && !hc_call_done(m->calls[i], m->rank) && !hc_link_stuck(m->link); k++) usleep(100);
        if (!hc_call_done(m->calls[i], m->rank)) hc_call_fail(m->dev, m->calls[i], m->rank, 8);
    }
}

static void leave(member *m) {
    if (m->rank == 1 && m->trouble == LOST) CHECK(hc_reset(m->dev) == 1);
    hc_shut(m->dev, 3);
    for (int i = 0; i < CALLS; i++) hc_call_release(m->calls[i]);
    hc_link_end(m->link);
    hc_link_release(m->link);
    hc_unref(m->cells);
    hc_unref(m->timeline);
    hc_release_device(m->dev);
}

static void *take_part(void *argument) {
    member *m = argument;
    int64_t value = submit_all(m);
    if (m->trouble == NONE) CHECK(!end_of(m, value));
    else if (value) look_after(m);
    if (value) end_of(m, value);
    leave(m);
    return NULL;
}

static void join(member *m, int fd, int rank, enum trouble trouble) {
    *m = (member){.dev = hc_open(1, rank, 1LL << 30, 2000000000), .rank = rank, .trouble = trouble};
    m->link = hc_link_new(m->dev, fd, rank, SIZE);
    CHECK(m->link && !hc_alloc(m->dev, 560000, 1, 0, 0, &m->cells));
    m->timeline = hc_timeline_new(m->dev, 0);
    for (int i = 0; i < CALLS; i++) { /* all-reduce and all-to-all, longer than a step */
        m->calls[i] = hc_call_new(SIZE, i % 2 ? 0 : 5, 1, 0, 0, i % 2 ? 140000 : 45000, NULL);
        hc_call_over(m->calls[i], m->link, i);
    }
}

void links(void) {
    for (enum trouble trouble = NONE; trouble <= CLOSED; trouble++) {
        member members[SIZE];
        pthread_t threads[SIZE];
        int fd = memfd_create("stress", 0);
        CHECK(fd >= 0 && !ftruncate(fd, hc_link_nbytes(SIZE)));
        for (int i = 0; i < SIZE; i++) join(&members[i], fd, i, trouble);
        close(fd);
        for (int i = 0; i < SIZE; i++) pthread_create(&threads[i], NULL, take_part, &members[i]);
        for (int i = 0; i < SIZE; i++) pthread_join(threads[i], NULL);
    }
    usleep(50000); /* the links' threads end by themselves */
}
