/* The connection to another rank: what is said over it, and what silence or its end mean. */
#ifndef HAL_ENGINE_PEER_H
#define HAL_ENGINE_PEER_H

#include "frame.h"

int he_peer_send(he_group *g, int rank, const he_message *message, int fd);
void he_peer_show_watcher(he_group *g, int watcher);
void he_peer_beat(he_group *g, int64_t now_ns);
void he_peer_hear(he_group *g, int rank, int64_t now_ns);
void he_peer_miss(he_group *g, int rank, int64_t now_ns);

#endif
