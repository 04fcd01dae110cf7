/* A message that this rank sends or wants, and what the thread of messages does with it. */
#ifndef HAL_ENGINE_MESSAGE_H
#define HAL_ENGINE_MESSAGE_H

#include "channel.h"

/* A message that is lent, as one of its two ranks knows it. */
typedef struct {
    int64_t nbytes;    /* of its elements; 0: it is not lent */
    he_place src;      /* of id HE_IN_PROCESS: an address in the sender's process */
    unsigned char *at; /* once it is known: where this process has the other rank's memory */
    uint64_t seen;     /* the pieces that had been copied when it looked last */
    int ended;
} he_lent;

typedef struct {
    he_work work; /* first, as it is freed as that; its call's digest is the tag */
    he_transfer transfer; /* of one that is lent: of its place */
    he_lent lent;
    int64_t moved_ns, posted;
    atomic_int peer;
} he_message_work;

/* The queue of receives from whichever rank sends first; of each of the others 2 * r is to rank r, 2 * r + 1 from it. */
static inline int he_from_anybody(const he_group *g) { return 2 * g->size; }

/* Whether all of it has been moved. */
static inline int he_has_moved(const he_transfer *t, const he_lent *lent) { return he_is_done(t) && (!lent->nbytes || lent->ended); }

/* message.c: the first one in a queue, or NULL; and takes one out of its queue. */
he_message_work *he_message_first(he_group *g, int queue);
void he_message_finish(he_group *g, int queue, he_work *w, int code);
/* lend.c: what can be done now for a lent message of which the other rank knows, and for one that has been told; they set
 * `moved` if anything was done, and give the code of a failure. */
int he_lend(he_group *g, int peer, const he_call *call, he_lent *lent, const unsigned char *src, int *moved);
int he_borrow(he_group *g, int peer, const he_frame *frame, he_lent *lent, unsigned char *dst, int *moved);
/* inbox.c */
/* A receive that has no place in a queue: what there is of the next message, where that is for it; `m` has not moved else. */
int he_inbox_alone(he_group *g, int peer, he_message_work *m);
int he_inbox_turn(he_group *g, int peer, int *moved);
void he_inbox_free(he_queue *q);

#endif
