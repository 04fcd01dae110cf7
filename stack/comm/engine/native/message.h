/* A message that this rank sends or wants, and what the thread of messages does with it. */
#ifndef HAL_ENGINE_MESSAGE_H
#define HAL_ENGINE_MESSAGE_H

#include "channel.h"

typedef struct {
    he_work work; /* first, as it is freed as that; its call's digest is the tag */
    he_transfer transfer;
    int64_t moved_ns;
} he_message_work;

/* message.c: takes it out of its queue, 2 * r for those to rank r and 2 * r + 1 for those from it. */
void he_message_finish(he_group *g, int queue, he_work *w, int code);
/* inbox.c */
int he_inbox_turn(he_group *g, int peer, int *moved);
void he_inbox_free(he_queue *q);

#endif
