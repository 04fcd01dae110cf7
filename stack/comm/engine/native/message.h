/* A message that this rank sends or wants, and what the thread of messages does with it. */
#ifndef HAL_ENGINE_MESSAGE_H
#define HAL_ENGINE_MESSAGE_H

#include "channel.h"

typedef struct {
    he_work work; /* first, as it is freed as that; its call's digest is the tag */
    he_transfer transfer;
    int64_t moved_ns, posted;
    atomic_int peer;
} he_message_work;

/* The queue of receives from whichever rank sends first; of each of the others 2 * r is to rank r, 2 * r + 1 from it. */
static inline int he_from_anybody(const he_group *g) { return 2 * g->size; }

/* message.c: the first one in a queue, or NULL; and takes one out of its queue. */
he_message_work *he_message_first(he_group *g, int queue);
void he_message_finish(he_group *g, int queue, he_work *w, int code);
/* inbox.c */
/* A receive that has no place in a queue: what there is of the next message, where that is for it; `m` has not moved else. */
int he_inbox_alone(he_group *g, int peer, he_message_work *m);
int he_inbox_turn(he_group *g, int peer, int *moved);
void he_inbox_free(he_queue *q);

#endif
