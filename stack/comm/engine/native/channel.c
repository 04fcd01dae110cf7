/* The bytes of a lane between two ranks, through a ring or a socket; and messages over them. */
#include "channel.h"
#include <poll.h>
#include <sys/socket.h>

#define BUFFER_NBYTES (256LL << 10)
#define MIXED_LOOK_NS 200000 /* for ranks that wait for sockets and rings at once */

int64_t he_channel_put(he_group *g, int lane, int peer, const void *bytes, int64_t n, int more) {
    if (!g->peers[peer].remote) return he_ring_put(g, lane, peer, bytes, n);
    ssize_t sent = send(g->peers[peer].data[lane], bytes, n, MSG_DONTWAIT | MSG_NOSIGNAL | (more ? MSG_MORE : 0));
    return sent > 0 ? sent : 0; /* that a connection has ended is heard on the life connection */
}

static int64_t peek_socket(he_group *g, int lane, int peer, int64_t wanted, unsigned char **at) {
    he_buffer *b = &g->peers[peer].buffers[lane];
    if (!b->bytes && !(b->bytes = malloc(BUFFER_NBYTES))) return 0;
    if (b->end - b->start < wanted) {
        memmove(b->bytes, b->bytes + b->start, b->end - b->start);
        b->end -= b->start;
        b->start = 0;
        ssize_t n = recv(g->peers[peer].data[lane], b->bytes + b->end, BUFFER_NBYTES - b->end, MSG_DONTWAIT);
        if (n > 0) b->end += n;
    }
    *at = b->bytes + b->start;
    return b->end - b->start;
}

/* How many bytes have come, and lie at `at`; `wanted` are enough. */
int64_t he_channel_peek(he_group *g, int lane, int peer, int64_t wanted, unsigned char **at) {
    if (!g->peers[peer].remote) return he_ring_peek(g, lane, peer, at);
    return peek_socket(g, lane, peer, wanted < BUFFER_NBYTES ? wanted : BUFFER_NBYTES, at);
}

void he_channel_take(he_group *g, int lane, int peer, int64_t n) {
    if (g->peers[peer].remote) g->peers[peer].buffers[lane].start += n;
    else he_ring_take(g, lane, peer, n);
}

he_transfer he_transfer_of(const he_call *call, int64_t number, int64_t nbytes) {
    int64_t filled = (nbytes + FRAME_NBYTES - 1) / FRAME_NBYTES * FRAME_NBYTES;
    return (he_transfer){.frame = {.call = *call, .number = number, .nbytes = nbytes}, .total = FRAME_NBYTES + filled};
}

static int64_t send_some(he_group *g, int lane, int peer, const he_transfer *t, const unsigned char *data) {
    static const unsigned char filling[FRAME_NBYTES];
    int64_t head = FRAME_NBYTES - t->moved, left = FRAME_NBYTES + t->frame.nbytes - t->moved;
    if (head > 0) return he_channel_put(g, lane, peer, (const char *)&t->frame + t->moved, head, t->frame.nbytes > 0);
    if (left > 0) return he_channel_put(g, lane, peer, data + t->frame.nbytes - left, left, t->moved + left < t->total);
    return he_channel_put(g, lane, peer, filling, t->total - t->moved, 0);
}

int he_send(he_group *g, int lane, int peer, he_transfer *t, const unsigned char *data) {
    int64_t before = t->moved, n = 1;
    while (n > 0 && !he_is_done(t)) t->moved += n = send_some(g, lane, peer, t, data);
    return t->moved > before;
}

static int is_expected(he_group *g, int peer, const he_transfer *t, const unsigned char *head) {
    he_frame came;
    memcpy(&came, head, sizeof came);
    if (!memcmp(&came.call, &t->frame.call, sizeof came.call) && came.number == t->frame.number && came.nbytes == t->frame.nbytes)
        return HE_OK;
    return he_fail(g, HE_DIFFERS, peer, g->rank, &t->frame.call, &came.call, 0);
}

/* What of the bytes that have come is taken now: the head as a whole, whole elements, what fills up. */
static int64_t take_some(he_group *g, int peer, he_transfer *t, int64_t size, he_sink sink, void *context, const unsigned char *at, int64_t there, int *code) {
    int64_t left = FRAME_NBYTES + t->frame.nbytes - t->moved;
    if (t->moved < FRAME_NBYTES) {
        if (there < FRAME_NBYTES || (*code = is_expected(g, peer, t, at))) return 0;
        return FRAME_NBYTES;
    }
    if (left <= 0) return there < t->total - t->moved ? there : t->total - t->moved;
    int64_t n = (there < left ? there : left) / size;
    if (n) sink(context, (t->moved - FRAME_NBYTES) / size, n, at);
    return n * size;
}

int he_receive(he_group *g, int lane, int peer, he_transfer *t, int64_t size, he_sink sink, void *context, int *moved) {
    int code = HE_OK;
    for (int64_t n = 1; n > 0 && !he_is_done(t);) {
        unsigned char *at;
        int64_t there = he_channel_peek(g, lane, peer, t->moved < FRAME_NBYTES ? FRAME_NBYTES : t->total - t->moved, &at);
        n = there > 0 ? take_some(g, peer, t, size, sink, context, at, there, &code) : 0;
        if (n > 0) he_channel_take(g, lane, peer, n);
        if (n > 0) *moved = 1;
        t->moved += n;
    }
    return code;
}

/* From now on others ring. */
uint32_t he_bell(he_group *g, int lane) {
    he_end *end = &g->ends[g->here];
    __atomic_store_n(&end->asleep[lane], 1, __ATOMIC_SEQ_CST);
    return __atomic_load_n(&end->bells[lane], __ATOMIC_SEQ_CST);
}

static int sockets_of(he_group *g, int lane, const he_interest *interest, struct pollfd *fds, int *near) {
    int n = 0;
    for (int r = 0; r < g->size; r++) {
        if (!interest->sends[r] && !interest->receives[r]) continue;
        if (!g->peers[r].remote) *near = 1;
        else fds[n++] = (struct pollfd){.fd = g->peers[r].data[lane], .events = (interest->sends[r] ? POLLOUT : 0) | (interest->receives[r] ? POLLIN : 0)};
    }
    return n;
}

void he_lane_sleep(he_group *g, int lane, uint32_t bell, const he_interest *interest) {
    struct pollfd fds[g->size];
    int near = 0, n = sockets_of(g, lane, interest, fds, &near);
    int also = near || lane == HE_MESSAGES; /* others than the sockets may wake it */
    struct timespec look = {0, also ? MIXED_LOOK_NS : LOOK_NS};
    if (n) ppoll(fds, n, &look, NULL);
    else he_futex_wait(&g->ends[g->here].bells[lane], bell, LOOK_NS);
}
