/* How a rank goes. It says good-bye at once, but what it has begun before still ends; so each lane has an end of its
 * own, behind the last byte that the rank has for others and the last one that it takes. */
#include "channel.h"
#include <poll.h>
#include <sys/socket.h>

/* To ranks of other hosts the good-bye may overtake the data, which goes through other connections. */
static void end_lane(he_group *g, int lane) {
    he_end *end = &g->ends[g->here];
    if (__atomic_exchange_n(&end->over[lane], 1, __ATOMIC_SEQ_CST)) return;
    for (int r = 0; r < g->size; r++)
        if (g->peers[r].remote) shutdown(g->peers[r].data[lane], SHUT_WR);
    he_wake(&end->posted);
}

/* Ends the lanes on which a rank that leaves has nothing more to do; after the last one it is silent. */
void he_part(he_group *g) {
    pthread_mutex_lock(&g->lock);
    int called = g->ending && !g->running && !g->queue, sent = g->ending && !g->nmessages;
    if (called) end_lane(g, HE_PROGRAMS);
    if (sent) end_lane(g, HE_MESSAGES);
    pthread_mutex_unlock(&g->lock);
    if (called && sent) he_watch_remove(g);
}

static int has_ended(he_group *g, int lane, int rank) {
    struct pollfd one = {.fd = g->peers[rank].data[lane], .events = POLLRDHUP};
    return poll(&one, 1, 0) == 1 && (one.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL));
}

/* Whether the rank has left and does nothing more on the lane: all that it has sent is there to be taken. One whose
 * process has ended before has ended its lanes, too. */
int he_is_away(he_group *g, int lane, int rank) {
    int left = he_state_of(g, rank) == HE_LEFT;
    if (g->peers[rank].remote) return left && has_ended(g, lane, rank);
    he_end *end = &g->ends[g->index[rank]];
    return __atomic_load_n(&end->presence, __ATOMIC_SEQ_CST) != HE_HERE &&
           (left || __atomic_load_n(&end->over[lane], __ATOMIC_SEQ_CST));
}
