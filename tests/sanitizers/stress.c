/* Drives the CPU plugin's runtime from many threads, without an interpreter that holds them apart. */
#include "runtime.h"
#include <sched.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(ok) do { if (!(ok)) { printf("%s:%d: %s\n", __FILE__, __LINE__, #ok); abort(); } } while (0)

static hc_device *dev;
static int rounds;

static void increment(const uint64_t *args, const int64_t *grid, int64_t begin, int64_t end) {
    (void)grid;
    for (int64_t i = begin; i < end; i++) ((int64_t *)args[0])[i] += (int64_t)args[1];
}

static void wait_for(hc_device *d, hc_timeline *t, int64_t value) {
    hc_point point = {t, value};
    int64_t failure;
    int reached = 0;
    for (int first = 1; !reached; first = 0) reached = hc_wait(d, 1, &point, 1, first, 20000000, &failure);
    CHECK(reached == 1);
}

static void end(void *object) {
    hc_free(dev, object);
    hc_unref(object);
}

/* Four launches, then a graph of two more and a copy, on two timelines: every element ends as 10. */
static void compute(hc_program *program, hc_timeline *direct, hc_timeline *replayed, int n, int shareable) {
    hc_buffer *cells, *copy;
    CHECK(!hc_alloc(dev, n * 8, 1, shareable, 0, &cells) && !hc_alloc(dev, n * 8, 0, 0, 1, &copy));
    hc_arg args[2] = {{cells, 0}, {NULL, 1}}, slot = {NULL, 5};
    hc_launchable *bound;
    CHECK(!hc_bind(dev, program, 2, args, &bound));
    int64_t value = hc_fill(dev, cells, 0, n * 8, 0, 1, direct, 0, NULL, 0);
    for (int i = 0; i < 4; i++) value = hc_launch(dev, bound, n, 1, 1, direct, 0, NULL, 0);
    hc_command commands[3] = {{.launchable = bound, .grid = {n, 1, 1}, .after_count = -1},
                              {.launchable = bound, .grid = {n, 1, 1}, .after_count = -1},
                              {.dst = copy, .src = cells, .nbytes = n * 8, .after_count = -1}};
    hc_patch patch = {1, 1, 0};
    hc_graph *graph;
    CHECK(!hc_record(dev, 3, commands, 1, &patch, 1, &graph));
    hc_point after = {direct, value};
    value = hc_replay(dev, graph, 1, &slot, replayed, 1, &after, 0);
    CHECK(value > 0);
    end(graph);
    wait_for(dev, replayed, value);
    for (int i = 0; i < n; i++) CHECK(((int64_t *)hc_data(copy))[i] == 10);
    end(bound);
    end(cells);
    end(copy);
}

static void *client(void *argument) {
    unsigned seed = (unsigned)(uintptr_t)argument;
    hc_timeline *direct = hc_timeline_new(dev, 0), *replayed = hc_timeline_new(dev, 0);
    hc_program *program = hc_program_new(dev, (void *)increment, 0);
    for (int k = 0; k < rounds; k++)
        compute(program, direct, replayed, 1 + rand_r(&seed) % 20000, rand_r(&seed) % 5 == 0);
    end(direct);
    end(replayed);
    end(program);
    return NULL;
}

static void *host_calls(void *timeline) {
    while (hc_host_next(timeline)) hc_host_done(timeline, 0);
    return NULL;
}

/* Clients at work, host calls, then the end: after a loss and reset, or in the middle of work. */
static void session(int lose) {
    pthread_t clients[4], host;
    dev = hc_open(3, 0, 1LL << 32, 2000000000);
    for (uintptr_t i = 0; i < 4; i++) pthread_create(&clients[i], NULL, client, (void *)(i + 1));
    for (int i = 0; i < 4; i++) pthread_join(clients[i], NULL);
    hc_stats stats;
    hc_count(dev, &stats);
    CHECK(stats.live == 0);
    hc_timeline *t = hc_timeline_new(dev, 0);
    pthread_create(&host, NULL, host_calls, t);
    int64_t value = 0;
    for (int i = 0; i < 100; i++) value = hc_host_call(dev, t, 0, NULL, 0);
    wait_for(dev, t, value);
    hc_program *program = hc_program_new(dev, (void *)increment, 0);
    hc_buffer *cells;
    hc_launchable *bound;
    CHECK(!hc_alloc(dev, 80000, 1, 0, 0, &cells));
    hc_arg args[2] = {{cells, 0}, {NULL, 1}};
    CHECK(!hc_bind(dev, program, 2, args, &bound));
    for (int i = 0; i < 300; i++) hc_launch(dev, bound, 10000, 1, 1, t, 0, NULL, 0);
    if (lose) {
        hc_lose(dev, 7, 0);
        CHECK(hc_reset(dev) == 1);
    }
    hc_shut(dev, 3);
    pthread_join(host, NULL);
    hc_unref(bound);
    hc_unref(cells);
    hc_unref(program);
    hc_unref(t);
    hc_release_device(dev);
}

static atomic_int released;

static void stick(const uint64_t *args, const int64_t *grid, int64_t begin, int64_t end) {
    (void)args, (void)grid, (void)begin, (void)end;
    while (!atomic_load(&released)) sched_yield();
}

static int64_t failure_of(hc_timeline *t, int64_t value) {
    hc_point point = {t, value};
    int64_t failure = 0;
    int reached = 0;
    for (int first = 1; !reached; first = 0) reached = hc_wait(dev, 1, &point, 1, first, 20000000, &failure);
    CHECK(reached == HC_FAILED);
    return failure;
}

/* Kernels that do not end: the device goes on without their workers, which end when they come back. */
static void hangs(void) {
    dev = hc_open(3, 0, 1LL << 30, 200000000);
    for (int k = 0; k < 4; k++) {
        atomic_store(&released, 0);
        hc_timeline *t = hc_timeline_new(dev, 0);
        hc_program *program = hc_program_new(dev, (void *)stick, 0);
        hc_buffer *b;
        hc_launchable *bound;
        CHECK(!hc_alloc(dev, 80000, 1, 0, 0, &b));
        hc_arg arg = {b, 0};
        CHECK(!hc_bind(dev, program, 1, &arg, &bound));
        int64_t value = hc_launch(dev, bound, k % 2 ? 1 : 1000, 1, 1, t, 0, NULL, 0);
        if (k < 3) CHECK(failure_of(t, value) == HC_HANGS - HC_FIRST_NAME && hc_hanging(dev) && hc_abandoned(dev));
        if (k >= 2) {
            hc_lose(dev, 7, 0);
            CHECK(hc_reset(dev) == k - 1 && !hc_hanging(dev));
            hc_stats stats;
            hc_count(dev, &stats);
            CHECK(!stats.live && !stats.buffers);
        }
        atomic_store(&released, 1);
        while (hc_abandoned(dev)) sched_yield();
        CHECK(!hc_hanging(dev));
        hc_unref(bound);
        hc_unref(b);
        hc_unref(program);
        hc_unref(t);
    }
    hc_shut(dev, 3);
    hc_release_device(dev);
}

#define CALLS 60

typedef struct { hc_device *dev; hc_call **calls; int rank; } member;

static void *take_part(void *argument) {
    member *m = argument;
    hc_timeline *t = hc_timeline_new(m->dev, 0);
    hc_buffer *b;
    int64_t value = 0;
    CHECK(!hc_alloc(m->dev, 400000, 1, 0, 0, &b));
    for (int i = 0; i < CALLS; i++)
        value = hc_collective(m->dev, m->calls[i], m->rank, b, 0, b, 0, t, 0, NULL, 0);
    wait_for(m->dev, t, value);
    hc_unref(b);
    hc_free(m->dev, t);
    hc_unref(t);
    return NULL;
}

static void collectives(void) {
    hc_call *calls[CALLS];
    member members[3];
    pthread_t threads[3];
    for (int i = 0; i < CALLS; i++) calls[i] = hc_call_new(3, i % 2 ? 0 : 5, 1, 0, 0, i % 2 ? 30000 : 10000, NULL);
    for (int i = 0; i < 3; i++) members[i] = (member){hc_open(2, i, 1LL << 30, 2000000000), calls, i};
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, take_part, &members[i]);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < CALLS; i++) hc_call_release(calls[i]);
    for (int i = 0; i < 3; i++) {
        hc_shut(members[i].dev, 3);
        hc_release_device(members[i].dev);
    }
}

/* A child of a fork drops its handles while a thread that it does not have holds the lock. */
static void forked(void) {
    hc_buffer *b;
    dev = hc_open(2, 0, 1LL << 30, 2000000000);
    CHECK(!hc_alloc(dev, 100, 0, 0, 0, &b));
    pthread_mutex_lock(&dev->memory_lock);
    pid_t child = fork();
    if (!child) {
        alarm(10);
        hc_mark_forked(dev);
        hc_unref(b);
        hc_release_device(dev);
        _exit(0);
    }
    pthread_mutex_unlock(&dev->memory_lock);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    hc_unref(b);
    hc_shut(dev, 3);
    hc_release_device(dev);
}

int main(int argc, char **argv) {
    rounds = argc > 1 ? atoi(argv[1]) : 20;
    for (int i = 0; i < 4; i++) session(i % 2);
    hangs();
    collectives();
    forked();
    puts("done");
    return 0;
}
