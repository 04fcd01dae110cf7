/* What ranks tell each other over their connections. All messages have one size. */
#ifndef HAL_ENGINE_PEER_H
#define HAL_ENGINE_PEER_H

#include "engine.h"

enum { HE_BEAT, HE_SHARE, HE_UNSHARE, HE_WATCHER };

typedef struct {
    int32_t type, presence, done, failed;
    int64_t id, nbytes;  /* of HE_SHARE and HE_UNSHARE */
    he_call last;        /* of HE_BEAT, to ranks of other hosts */
    he_failure failure;
} he_message;

int he_peer_send(he_group *g, int rank, const he_message *message, int fd);
void he_peer_show_watcher(he_group *g, int watcher);
void he_peer_beat(he_group *g, int64_t now_ns);
void he_peer_hear(he_group *g, int rank, int64_t now_ns);
void he_peer_miss(he_group *g, int rank, int64_t now_ns);

#endif
