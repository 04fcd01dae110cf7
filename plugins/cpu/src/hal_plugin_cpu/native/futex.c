#include "runtime.h"
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

void hc_futex_wake(uint32_t *word, int n) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0); }

/* Sleeps while *word == seen, at most timeout_ns (< 0: for ever). Wakes early for a signal. */
int hc_futex_wait(uint32_t *word, uint32_t seen, int64_t timeout_ns) {
    struct timespec t = {timeout_ns / 1000000000LL, timeout_ns % 1000000000LL};
    return (int)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, timeout_ns < 0 ? NULL : &t, NULL, 0);
}

/* As above, for a word in memory that processes share; wakes all. */
void hc_shared_wake(uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0); }

void hc_shared_wait(uint32_t *word, uint32_t seen, int64_t timeout_ns) {
    struct timespec t = {timeout_ns / 1000000000LL, timeout_ns % 1000000000LL};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
}
