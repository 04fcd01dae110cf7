/* The life of worker threads: their stacks, their start and their end. */
#include "runtime.h"
#include <signal.h>
#include <sys/mman.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#define STACK_NBYTES (32LL << 20) /* kernels put up to 8 MiB of scratch memory on it */
#define HUGE_NBYTES (2LL << 20)

/* The item of an abandoned worker has ended after all: the device hangs in one place less, which is
   so before it has one abandoned worker less, as nobody who sees none may find it hanging. */
static void come_back(hc_worker *w) {
    hc_device *dev = w->dev;
    w->ended = 1;
    if (w->abandoned == 1 + atomic_load(&dev->epoch)) atomic_fetch_sub(&dev->hanging, 1);
    atomic_fetch_sub(&dev->abandoned, 1);
}

static void *worker_main(void *argument) {
    hc_worker *w = argument;
    hc_device *dev = w->dev;
#ifdef __x86_64__
    _mm_setcsr(0x1f80); /* denormals as declared, whatever the opening thread had set */
#endif
    pthread_mutex_lock(&dev->lock);
    while (!dev->stop && !w->abandoned)
        if (!hc_work_once(w)) hc_rest(dev);
    int abandoned = w->abandoned != 0, orphan = w->orphan;
    if (abandoned) come_back(w);
    pthread_mutex_unlock(&dev->lock);
    if (orphan) free(w);
    if (abandoned) hc_release_device(dev);
    return NULL;
}

static void *new_stack(void) {
    char *raw = mmap(NULL, STACK_NBYTES + HUGE_NBYTES, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (raw == MAP_FAILED) return NULL;
    char *stack = (char *)(((uintptr_t)raw + HUGE_NBYTES - 1) / HUGE_NBYTES * HUGE_NBYTES);
    if (stack > raw) munmap(raw, stack - raw);
    munmap(stack + STACK_NBYTES, HUGE_NBYTES - (stack - raw));
    madvise(stack + HUGE_NBYTES, STACK_NBYTES - HUGE_NBYTES, MADV_HUGEPAGE);
    mprotect(stack, 4096, PROT_NONE);
    return stack;
}

/* Signals stay with the host's threads: ours never run a handler. `stack` NULL: the system gives a small one. */
int hc_start_thread(pthread_t *thread, void *stack, int64_t nbytes, void *(*run)(void *), void *argument) {
    pthread_attr_t attributes;
    sigset_t all, before;
    pthread_attr_init(&attributes);
    if (stack) pthread_attr_setstack(&attributes, stack, nbytes);
    else pthread_attr_setstacksize(&attributes, nbytes);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, &attributes, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}

static hc_worker *new_worker(hc_device *dev, int index) {
    hc_worker *w = aligned_alloc(_Alignof(hc_worker), sizeof *w);
    if (!w) return NULL;
    memset(w, 0, sizeof *w);
    w->dev = dev;
    w->index = index;
    w->own.ranges = &w->range;
    w->stack = new_stack();
    if (w->stack && !hc_start_thread(&w->thread, w->stack, STACK_NBYTES, worker_main, w)) return w;
    if (w->stack) munmap(w->stack, STACK_NBYTES);
    free(w);
    return NULL;
}

/* Starts the workers that are missing; -1 when the system does not give one. */
int hc_refill_workers(hc_device *dev) {
    for (int i = 0; i < dev->threads; i++) {
        if (!dev->workers[i]) dev->workers[i] = new_worker(dev, i);
        if (!dev->workers[i]) return -1;
    }
    return 0;
}

int hc_start_workers(hc_device *dev) {
    dev->workers = calloc(dev->threads, sizeof *dev->workers);
    return dev->workers ? hc_refill_workers(dev) : -1;
}

/* Under the lock: others take the places of all who work on the slot. The device lives as long as they do. */
void hc_abandon(hc_device *dev, hc_slot *slot) {
    for (int i = 0; i < dev->threads; i++) {
        hc_worker *w = dev->workers[i];
        if (!w || w->slot != slot) continue;
        w->abandoned = 1 + atomic_load(&dev->epoch);
        atomic_fetch_add(&dev->refs, 1);
        atomic_fetch_add(&dev->abandoned, 1);
        atomic_fetch_add(&dev->hanging, 1);
        w->next = dev->left;
        dev->left = w;
        dev->workers[i] = NULL;
    }
}

/* Under the lock: whether a worker is at work. */
int hc_workers_busy(hc_device *dev) {
    for (int i = 0; i < dev->threads && dev->workers; i++)
        if (dev->workers[i] && dev->workers[i]->slot) return 1;
    return 0;
}

static void end_worker(hc_worker *w) {
    pthread_join(w->thread, NULL);
    munmap(w->stack, STACK_NBYTES);
    free(w);
}

/* Abandoned workers that have come back end here; of the others, which may run for ever, nothing is given back. */
static void end_left(hc_device *dev) {
    pthread_mutex_lock(&dev->lock);
    hc_worker *w = dev->left, *ended = NULL, *next;
    for (dev->left = NULL; w; w = next) {
        next = w->next;
        w->orphan = !w->ended;
        w->next = ended;
        if (w->orphan) pthread_detach(w->thread);
        else ended = w;
    }
    pthread_mutex_unlock(&dev->lock);
    for (; ended; ended = next) {
        next = ended->next;
        end_worker(ended);
    }
}

void hc_stop_workers(hc_device *dev) {
    pthread_mutex_lock(&dev->lock);
    dev->stop = 1;
    __atomic_add_fetch(&dev->work_seq, 1, __ATOMIC_SEQ_CST);
    hc_futex_wake(&dev->work_seq, dev->threads);
    pthread_mutex_unlock(&dev->lock);
    for (int i = 0; i < dev->threads && dev->workers; i++)
        if (dev->workers[i]) end_worker(dev->workers[i]);
    end_left(dev);
    pthread_mutex_lock(&dev->lock);
    free(dev->workers);
    dev->workers = NULL;
    pthread_mutex_unlock(&dev->lock);
}
