/* The thread of a process that watches over all its groups. It runs whatever Python does; so a rank is silent only
 * when its process is stopped or cannot be reached. */
#include "peer.h"
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#define IDLE_NS 1000000000LL
#define SLICE_NS 100000 /* the shortest there is */
#ifndef PIDFD_THREAD
#define PIDFD_THREAD O_EXCL
#endif

static struct {
    pthread_mutex_t lock;
    he_group *groups;
    int running, wakes; /* an eventfd; -1 before the first group */
    int64_t looked_ns;
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER, .wakes = -1};

static void shut(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

/* Under the lock: room for the connections of all groups; returns how many there are. */
static int connections(struct pollfd **fds, int *room) {
    int n = 1, needed = 1;
    for (he_group *g = watch.groups; g; g = g->next) needed += 2 * g->size;
    struct pollfd *more = needed > *room ? realloc(*fds, needed * sizeof **fds) : NULL;
    if (more) {
        *fds = more;
        *room = needed;
    }
    if (!*room) return 0;
    (*fds)[0] = (struct pollfd){.fd = watch.wakes, .events = POLLIN};
    for (he_group *g = watch.groups; g; g = g->next)
        for (int r = 0; r < 2 * g->size && n < *room; r++) {
            int fd = r % 2 ? g->peers[r / 2].watcher : g->peers[r / 2].life;
            if (fd >= 0 && !g->peers[r / 2].deaf) (*fds)[n++] = (struct pollfd){.fd = fd, .events = POLLIN};
        }
    return n;
}

/* Under the lock: how long nothing needs to be done. */
static int64_t idle_ns(void) {
    int64_t least = IDLE_NS;
    for (he_group *g = watch.groups; g; g = g->next) least = g->beat_ns / 2 < least ? g->beat_ns / 2 : least;
    return least;
}

/* Lets the ranks of this host watch this thread. Where many ranks compute, a killed process waits for its turn on a
 * processor, then frees its memory, and only then ends its connections; this thread, which sleeps, ends at once. Kernels
 * before 6.9 have no such descriptor: there the connections tell. */
static void introduce(he_group *g) {
    int self = (int)syscall(SYS_pidfd_open, (pid_t)syscall(SYS_gettid), PIDFD_THREAD);
    if (self >= 0) he_peer_show_watcher(g, self);
    shut(&self);
    g->introduced = 1;
}

/* Ranks have a core each, which somebody's program in real time may keep for as long as it likes; a rank whose core is taken
 * is slow and not gone, and says so from the others' cores. */
static void roam(he_group *g) {
    uint64_t all[CORES / 64];
    cpu_set_t cores;
    if (!he_cores_of_all(g, all)) return;
    g->roams = 1;
    if (sched_getaffinity(0, sizeof cores, &cores)) return;
    for (int core = 0; core < CORES && core < CPU_SETSIZE; core++)
        if (all[core / 64] >> core % 64 & 1) CPU_SET(core, &cores);
    sched_setaffinity(0, sizeof cores, &cores);
}

/* After a long sleep of this thread (the process was stopped, the machine suspended) nobody else is to blame. */
static void look_at(he_group *g, int64_t now_ns) {
    int slept = now_ns - watch.looked_ns > g->heartbeat_ns / 2;
    he_look(g);
    if (!g->introduced) introduce(g);
    if (!g->roams) roam(g);
    for (int r = 0; r < g->size; r++) {
        if (slept) g->peers[r].heard_ns = now_ns;
        he_peer_hear(g, r, now_ns);
        he_peer_miss(g, r, now_ns);
    }
    he_peer_beat(g, now_ns);
}

static void clear_wakes(void) {
    uint64_t count;
    struct pollfd one = {.fd = watch.wakes, .events = POLLIN};
    if (poll(&one, 1, 0) != 1) return;
    if (eventfd_read(watch.wakes, &count)) watch.wakes = -1; /* the program has closed what is not its own */
}

/* What goes first of all threads that have the priority of the one that began this: the next one where that is of real time,
 * which a watch below it would wait for without end. */
static struct sched_param above(void) {
    struct sched_param own;
    int policy = sched_getscheduler(0) & ~SCHED_RESET_ON_FORK, most = sched_get_priority_max(SCHED_RR);
    int timed = (policy == SCHED_RR || policy == SCHED_FIFO) && !sched_getparam(0, &own);
    int priority = timed ? own.sched_priority + 1 : sched_get_priority_min(SCHED_RR);
    return (struct sched_param){.sched_priority = priority < most ? priority : most};
}

/* This thread has little to do, and others wait for its news: where others keep all processors busy it should run as
 * soon as it wakes up. In real time where that is permitted; else a short slice goes before long ones, from kernel 6.12
 * on. Without either its news takes a turn of the others more. */
static void go_first(void) {
    struct sched_param first = above();
    if (!sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &first)) return;
    struct { uint32_t nbytes, policy; uint64_t flags; int32_t nice; uint32_t priority; uint64_t slice_ns, deadline, period; } set;
    if (syscall(SYS_sched_getattr, 0, &set, sizeof set, 0) || set.policy != SCHED_OTHER) return;
    set.slice_ns = SLICE_NS;
    syscall(SYS_sched_setattr, 0, &set, 0);
}

/* Until the last group has left. */
static void *run(void *unused) {
    struct pollfd *fds = NULL;
    int room = 0;
    go_first();
    pthread_mutex_lock(&watch.lock);
    watch.looked_ns = he_now();
    while (watch.groups) {
        int n = connections(&fds, &room);
        int64_t wait_ns = idle_ns();
        pthread_mutex_unlock(&watch.lock);
        poll(fds, n, (int)(wait_ns / 1000000) + 1);
        pthread_mutex_lock(&watch.lock);
        clear_wakes();
        int64_t now_ns = he_now();
        for (he_group *g = watch.groups; g; g = g->next) look_at(g, now_ns);
        watch.looked_ns = now_ns;
    }
    watch.running = 0;
    pthread_mutex_unlock(&watch.lock);
    free(fds);
    return unused;
}

static int start(void) {
    pthread_t thread;
    sigset_t all, before;
    if (watch.running) return 1;
    if (watch.wakes < 0 && (watch.wakes = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) return 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    watch.running = !pthread_create(&thread, NULL, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (watch.running) pthread_detach(thread);
    return watch.running;
}

void he_watch_wake(void) {
    if (watch.wakes >= 0) eventfd_write(watch.wakes, 1);
}

static void close_all(he_group *g) {
    for (int r = 0; r < g->size; r++) {
        shut(&g->peers[r].life);
        shut(&g->peers[r].watcher);
    }
}

void he_watch_hold(void) { pthread_mutex_lock(&watch.lock); }

void he_watch_let_go(void) { pthread_mutex_unlock(&watch.lock); }

/* In the child of a fork, which is no member: its copies of the connections would hide that the parent has ended. */
static void in_child(void) {
    for (he_group *g = watch.groups; g; g = g->next) {
        atomic_store(&g->forked, 1);
        close_all(g);
        for (int r = 0; r < g->size; r++)
            for (int lane = 0; lane < 2; lane++) shut(&g->peers[r].data[lane]);
    }
    watch.groups = NULL;
    watch.running = 0;
    shut(&watch.wakes);
    pthread_mutex_init(&watch.lock, NULL);
    he_meshes_forget();
}

static void before_fork(void) {
    he_watch_hold();
    he_meshes_hold();
}

static void after_fork(void) {
    he_meshes_let_go();
    he_watch_let_go();
}

static void mind_forks(void) { pthread_atfork(before_fork, after_fork, in_child); }

/* 0 without a thread or a descriptor. */
int he_watch_add(he_group *g) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, mind_forks);
    pthread_mutex_lock(&watch.lock);
    int64_t now_ns = he_now();
    for (int r = 0; r < g->size; r++) g->peers[r].heard_ns = now_ns;
    int started = start();
    if (started) {
        g->next = watch.groups;
        watch.groups = g;
    }
    pthread_mutex_unlock(&watch.lock);
    he_watch_wake();
    return started;
}

/* Says good-bye. */
void he_watch_remove(he_group *g) {
    pthread_mutex_lock(&watch.lock);
    he_group **at = &watch.groups;
    while (*at && *at != g) at = &(*at)->next;
    if (*at) {
        *at = g->next;
        g->next_beat_ns = 0; /* now, though the news may have been told: there may have been no room for it */
        he_peer_beat(g, he_now());
        close_all(g);
    }
    pthread_mutex_unlock(&watch.lock);
    he_watch_wake();
}
