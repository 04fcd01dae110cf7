#include "runtime.h"
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

void hc_futex_wake(uint32_t *word, int n) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0); }

/* Sleeps while *word == seen, at most timeout_ns. Wakes early for a signal. */
int hc_futex_wait(uint32_t *word, uint32_t seen, int64_t timeout_ns) {
    struct timespec t = {timeout_ns / 1000000000LL, timeout_ns % 1000000000LL};
    return (int)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &t, NULL, 0);
}

/* A condition whose time is that of hc_now. */
void hc_cond_init(pthread_cond_t *cond) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* Under the lock: waits at most timeout_ns. */
void hc_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t timeout_ns) {
    int64_t until_ns = hc_now() + timeout_ns;
    struct timespec until = {until_ns / 1000000000LL, until_ns % 1000000000LL};
    pthread_cond_timedwait(cond, lock, &until);
}
