/* The memory that the members of a group in several processes share, and a member's end of it.
 *
 * Every member has a counter `posted` and two slots. A call goes in steps. In a step each member writes what it has
 * to say and to send into the slot of the step's parity, counts `posted` up, waits until all others have done the
 * same, and takes what it needs out of their slots. Nobody begins a step before all have posted the one before, so
 * a slot that is written is one that all have read. The first step of a call carries its description. */
#ifndef HAL_CPU_LINK_H
#define HAL_CPU_LINK_H

#include "call.h"

#define SLOT_NBYTES (256LL << 10)
#define LINE 128

typedef struct {
    _Alignas(LINE) uint32_t posted; /* wraps; members are never a step apart by more than one */
    uint32_t sleepers, presence;    /* presence: enum hc_presence */
} hc_end;

typedef struct {
    _Alignas(LINE) hc_said said;
    _Alignas(LINE) unsigned char data[SLOT_NBYTES];
} hc_slot_data;

struct hc_link {
    atomic_int refs;
    hc_device *dev;
    hc_link *next_of_device;
    int rank, size;
    hc_end *ends;          /* of all ranks, in shared memory */
    hc_slot_data *slots;   /* two of each rank, behind them */
    size_t nbytes;
    uint32_t step;         /* the next one; its thread's own */
    pthread_mutex_t lock;  /* of the four below; inside the device lock */
    pthread_cond_t changed;
    hc_call *queue, *running;
    int64_t next;          /* the number of the call to run next */
    int ending;
    atomic_int skipped, stuck, differs;
    _Atomic uint32_t awaited;      /* the step that it waits for, if `waiting` */
    atomic_int waiting;
    _Atomic int64_t moved_ns;
    atomic_char gone[];    /* ranks whose process is known to have ended */
};

static inline hc_slot_data *hc_slot_of(const hc_link *l, int rank, uint32_t step) {
    return &l->slots[rank * 2 + (step & 1)];
}

/* chunk.c */
int64_t hc_chunk_steps(const hc_call *c);
void hc_chunk_send(const hc_link *l, const hc_call *c, int64_t step, unsigned char *slot);
void hc_chunk_take(const hc_link *l, const hc_call *c, int64_t step);

#endif
