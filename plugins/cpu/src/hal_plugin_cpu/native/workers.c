/* The life of worker threads: their stacks, their start and their end. */
#include "runtime.h"
#include <signal.h>
#include <sys/mman.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#define STACK_NBYTES (32LL << 20) /* kernels put up to 4 MiB of scratch memory on it */
#define HUGE_NBYTES (2LL << 20)

static void *worker_main(void *argument) {
    hc_worker *w = argument;
    hc_device *dev = w->dev;
#ifdef __x86_64__
    _mm_setcsr(0x1f80); /* denormals as declared, whatever the opening thread had set */
#endif
    pthread_mutex_lock(&dev->lock);
    while (!dev->stop)
        if (!hc_work_once(w)) hc_rest(dev);
    pthread_mutex_unlock(&dev->lock);
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

/* Signals stay with the host's threads: a worker never runs a handler. */
static int start_worker(hc_worker *w) {
    pthread_attr_t attributes;
    sigset_t all, before;
    w->stack = new_stack();
    if (!w->stack) return -1;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, w->stack, STACK_NBYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&w->thread, &attributes, worker_main, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (error) munmap(w->stack, STACK_NBYTES);
    return error;
}

static int make_slots(hc_device *dev) {
    int n = dev->threads + 1; /* every worker may be the last in its own closed slot, and one is open */
    dev->slots = calloc(n, sizeof *dev->slots);
    hc_range *ranges = aligned_alloc(64, (size_t)n * dev->threads * sizeof *ranges);
    if (!dev->slots || !ranges) return -1;
    for (int i = 0; i < n; i++) dev->slots[i].ranges = ranges + (size_t)i * dev->threads;
    return 0;
}

int hc_start_workers(hc_device *dev) {
    dev->workers = calloc(dev->threads, sizeof *dev->workers);
    if (!dev->workers || make_slots(dev)) return -1;
    int wanted = dev->threads;
    for (int i = 0; i < wanted; i++) {
        dev->workers[i] = (hc_worker){.dev = dev, .index = i};
        if (start_worker(&dev->workers[i])) {
            dev->threads = i;
            return -1;
        }
    }
    return 0;
}

void hc_stop_workers(hc_device *dev) {
    pthread_mutex_lock(&dev->lock);
    dev->stop = 1;
    __atomic_add_fetch(&dev->work_seq, 1, __ATOMIC_SEQ_CST);
    hc_futex_wake(&dev->work_seq, dev->threads);
    pthread_mutex_unlock(&dev->lock);
    for (int i = 0; i < dev->threads; i++) {
        pthread_join(dev->workers[i].thread, NULL);
        munmap(dev->workers[i].stack, STACK_NBYTES);
    }
    if (dev->slots) free(dev->slots[0].ranges);
    free(dev->slots);
    free(dev->workers);
    dev->slots = NULL;
    dev->workers = NULL;
}
