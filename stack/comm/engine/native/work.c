/* The calls of a group, one after the other in the order in which they were made. A blocking call runs in its own
 * thread when nothing is queued; once it has waited there for a while, it and all others run in the group's thread. */
#include "engine.h"
#include <signal.h>

#define BUDGET_NS 20000000LL
#define IDLE_NS 500000000LL

void he_work_finish(he_work *w, int code) {
    if (code) he_shut(w->group);
    w->status = code;
    __atomic_store_n(&w->done, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&w->sleepers, __ATOMIC_SEQ_CST)) he_wake(&w->done);
}

void he_work_release(he_work *w) {
    if (atomic_fetch_sub(&w->refs, 1) != 1) return;
    he_program_free(w->program);
    he_group_release(w->group);
    free(w);
}

static int follow(he_group *g, he_work *w) {
    if (w->program) return he_program_run(g, w);
    int code = w->arrived ? HE_OK : he_arrive(g, w);
    return code ? code : he_finish(g, w);
}

static void run(he_work *w) {
    he_work_finish(w, follow(w->group, w));
    he_work_release(w);
}

static void end(he_group *g) {
    pthread_mutex_lock(&g->lock);
    g->running = 0;
    if (g->queue) pthread_cond_signal(&g->changed);
    int ending = g->ending;
    pthread_mutex_unlock(&g->lock);
    if (ending) he_part(g);
}

/* Under the lock. */
static he_work *take(he_group *g) {
    he_work *w = g->running ? NULL : g->queue;
    if (!w) return NULL;
    g->queue = w->next;
    if (!g->queue) g->tail = &g->queue;
    g->running = 1;
    return w;
}

static void *serve(void *argument) {
    he_group *g = argument;
    pthread_mutex_lock(&g->lock);
    while (!g->ending || g->queue) {
        he_work *w = take(g);
        if (!w) {
            he_cond_wait(&g->changed, &g->lock, IDLE_NS);
            continue;
        }
        pthread_mutex_unlock(&g->lock);
        run(w);
        end(g);
        pthread_mutex_lock(&g->lock);
    }
    pthread_mutex_unlock(&g->lock);
    he_group_release(g);
    return NULL;
}

/* A thread that hears no signals and is detached: it holds the group until it ends. */
int he_thread_start(he_group *g, void *(*run)(void *)) {
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int started = !pthread_create(&thread, NULL, run, g);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!started) return 0;
    pthread_detach(thread);
    atomic_fetch_add(&g->refs, 1);
    return 1;
}

static he_work *kept(const he_work *w) {
    he_work *copy = malloc(sizeof *copy);
    if (!copy) return NULL;
    *copy = *w;
    atomic_init(&copy->refs, 2); /* the caller's and the queue's */
    atomic_fetch_add(&w->group->refs, 1);
    copy->budget_ns = 0;
    copy->next = NULL;
    return copy;
}

static void enqueue(he_group *g, he_work *w, int first) {
    if (first) {
        w->next = g->queue;
        g->queue = w;
    } else {
        *g->tail = w;
    }
    if (!w->next) g->tail = &w->next;
    pthread_cond_signal(&g->changed);
}

/* Leaves the call to the group's thread; as the next one of all when it has begun already. */
static he_work *leave(he_group *g, const he_work *w) {
    he_work *copy = kept(w);
    pthread_mutex_lock(&g->lock);
    if (w->shown) g->running = 0; /* it has begun, and goes on as the first one */
    int started = copy && (g->threaded || (g->threaded = he_thread_start(g, serve)));
    if (started) enqueue(g, copy, w->shown);
    pthread_mutex_unlock(&g->lock);
    if (started || !copy) return copy;
    he_group_release(g);
    free(copy);
    return NULL;
}

/* 0 without memory for its program. */
static int work_of(he_work *w, he_group *g, const he_call *call, const he_route *route, void *dst, const void *src,
                   const int64_t *counts, int64_t timeout_ns) {
    *w = (he_work){.group = g, .call = *call, .dst = dst, .src = src, .counts = counts, .timeout_ns = timeout_ns};
    if (!route) return 1;
    w->call.digest = route->digest;
    w->program = he_program_new(g, route);
    return w->program != NULL;
}

he_work *he_collective_start(he_group *g, const he_call *call, const he_route *route, void *dst, const void *src,
                             const int64_t *counts, int64_t timeout_ns) {
    he_work w;
    if (atomic_load(&g->forked) || !work_of(&w, g, call, route, dst, src, counts, timeout_ns)) return NULL;
    he_work *started = leave(g, &w);
    if (!started) he_program_free(w.program);
    return started;
}

static int begin(he_group *g) {
    pthread_mutex_lock(&g->lock);
    int free = !g->running && !g->queue;
    if (free) g->running = 1;
    pthread_mutex_unlock(&g->lock);
    return free;
}

static _Thread_local he_work *left;

/* The work of this thread's last call, which gave HE_PENDING; the caller's. */
he_work *he_left(void) { return left; }

int he_work_leave(he_work *w) {
    left = w;
    return HE_PENDING;
}

/* Here, or after a while and what is queued in the group's thread. */
static int do_now(he_group *g, he_work *w) {
    int code = HE_PENDING;
    if (begin(g)) {
        w->budget_ns = w->timeout_ns < BUDGET_NS ? 0 : BUDGET_NS;
        code = w->program ? he_program_run(g, w) : he_arrive(g, w);
        w->budget_ns = 0;
        if (!code && !w->program) code = he_finish(g, w);
    }
    if (code != HE_PENDING) {
        end(g);
        return code;
    }
    he_work *queued = leave(g, w);
    return queued ? he_work_leave(queued) : he_fail(g, HE_NO_MEMORY, g->rank, g->rank, &w->call, NULL, 0);
}

int he_collective(he_group *g, const he_call *call, const he_route *route, void *dst, const void *src,
                  const int64_t *counts, int64_t timeout_ns) {
    he_work w;
    if (atomic_load(&g->forked)) return HE_FORKED;
    if (!work_of(&w, g, call, route, dst, src, counts, timeout_ns))
        return he_fail(g, HE_NO_MEMORY, g->rank, g->rank, &w.call, NULL, 0);
    int code = do_now(g, &w);
    if (code == HE_PENDING) return code;
    he_program_free(w.program);
    if (code) he_shut(g);
    return code;
}

int he_work_test(he_work *w) { return __atomic_load_n(&w->done, __ATOMIC_ACQUIRE) ? w->status : HE_PENDING; }

int he_work_wait(he_work *w, int64_t wait_ns) {
    int64_t until_ns = he_now() + wait_ns, left_ns;
    __atomic_add_fetch(&w->sleepers, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&w->done, __ATOMIC_SEQ_CST) && (left_ns = until_ns - he_now()) > 0)
        he_futex_wait(&w->done, 0, left_ns < LOOK_NS ? left_ns : LOOK_NS);
    __atomic_sub_fetch(&w->sleepers, 1, __ATOMIC_SEQ_CST);
    return he_work_test(w);
}
