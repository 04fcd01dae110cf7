/* A rank's newest call, as others read it while the rank may already make its next one. */
#include "engine.h"

enum { WORDS = sizeof(he_call) / 8, TRIES = 1000 };

/* No call yet. */
void he_last_init(he_last *last) { he_last_write(last, &(he_call){.sequence = -1}); }

/* By one thread at a time. Others do not read the place that is written, unless they are as slow as two calls. */
void he_last_write(he_last *last, const he_call *call) {
    uint64_t words[WORDS], next = last->told + 1;
    memcpy(words, call, sizeof words);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    for (int i = 0; i < WORDS; i++) __atomic_store_n(&last->calls[next % 2][i], words[i], __ATOMIC_RELAXED);
    __atomic_store_n(&last->told, next, __ATOMIC_RELEASE);
}

/* So many calls have ended. */
void he_last_ended(he_last *last, uint64_t calls) { __atomic_store_n(&last->ended, calls, __ATOMIC_RELEASE); }

/* The newest call, and whether it has ended; its sequence is -1 where there is none, or where the rank has made others
 * whenever this one looked. */
he_call he_last_read(const he_last *last, int *done) {
    uint64_t words[WORDS], seen, now = __atomic_load_n(&last->told, __ATOMIC_ACQUIRE);
    int tries = 0;
    he_call call = {.sequence = -1};
    do {
        seen = now;
        for (int i = 0; i < WORDS; i++) words[i] = __atomic_load_n(&last->calls[seen % 2][i], __ATOMIC_RELAXED);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        now = __atomic_load_n(&last->told, __ATOMIC_RELAXED);
    } while (now != seen && ++tries < TRIES);
    if (now == seen) memcpy(&call, words, sizeof call);
    *done = call.sequence >= 0 && __atomic_load_n(&last->ended, __ATOMIC_ACQUIRE) > (uint64_t)call.sequence;
    return call;
}
