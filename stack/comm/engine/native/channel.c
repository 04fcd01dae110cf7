/* The bytes of a lane between two ranks, through a ring or a socket; and messages over them. */
#include "channel.h"
#include <poll.h>
#include <sys/socket.h>

#define MIXED_LOOK_NS 200000 /* for ranks that wait for sockets and rings at once */

static int proved(he_group *g, int peer, int64_t there) {
    if (there >= 0) return HE_OK;
    return he_fail(g, (int)-there, there == -HE_TAMPERED ? peer : g->rank, g->rank, NULL, NULL, 0);
}

int he_channel_peek(he_group *g, int lane, int peer, unsigned char **at, int64_t *there) {
    he_peer *p = &g->peers[peer];
    *there = p->remote ? he_seal_peek(&p->seals[lane], p->data[lane], at) : he_ring_peek(g, lane, peer, at);
    if (*there >= 0) return HE_OK;
    return p->remote ? proved(g, peer, *there) : he_nonsense(g, peer, HE_WRONG_RING);
}

void he_channel_take(he_group *g, int lane, int peer, int64_t n) {
    if (g->peers[peer].remote) he_seal_take(&g->peers[peer].seals[lane], n);
    else he_ring_take(g, lane, peer, n);
}

he_transfer he_transfer_of(const he_call *call, int64_t number, int64_t nbytes) {
    int64_t filled = (nbytes + HE_FRAME_NBYTES - 1) / HE_FRAME_NBYTES * HE_FRAME_NBYTES;
    return (he_transfer){.frame = {.call = *call, .number = number, .nbytes = nbytes}, .total = HE_FRAME_NBYTES + filled};
}

/* The next piece of the message from its byte `at` on, at most `most` bytes: of its head, its data, or what fills up. */
static he_piece piece_at(const he_transfer *t, const unsigned char *data, int64_t at, int64_t most) {
    static const unsigned char filling[HE_FRAME_NBYTES];
    int64_t end = HE_FRAME_NBYTES + t->frame.nbytes;
    he_piece piece = {filling, t->total - at};
    if (at < HE_FRAME_NBYTES) piece = (he_piece){(const char *)&t->frame + at, HE_FRAME_NBYTES - at};
    else if (at < end) piece = (he_piece){data + at - HE_FRAME_NBYTES, end - at};
    if (piece.nbytes > most) piece.nbytes = most;
    return piece;
}

/* A record of whatever is next, at once to another host, else as much of it as there is room for. */
static int64_t send_some(he_group *g, int lane, int peer, const he_transfer *t, const unsigned char *data) {
    he_piece pieces[3];
    int count = 0;
    int64_t n = 0, left = t->total - t->moved;
    for (int64_t most = left < HE_RECORD_NBYTES ? left : HE_RECORD_NBYTES; n < most; n += pieces[count++].nbytes)
        pieces[count] = piece_at(t, data, t->moved + n, most - n);
    if (!g->peers[peer].remote) return he_ring_put(g, lane, peer, pieces, count);
    /* that a connection has ended is heard on the life connection */
    return he_seal_put(&g->peers[peer].seals[lane], g->peers[peer].data[lane], pieces, count) > 0 ? n : 0;
}

int he_send(he_group *g, int lane, int peer, he_transfer *t, const unsigned char *data, int *moved) {
    for (int64_t n = 1; n > 0 && !he_is_done(t); t->moved += n) {
        n = send_some(g, lane, peer, t, data);
        if (n < 0) return he_nonsense(g, peer, HE_WRONG_RING);
        if (n > 0) *moved = 1;
    }
    return HE_OK;
}

static int is_expected(he_group *g, int lane, int peer, const he_transfer *t, const unsigned char *head) {
    he_frame came;
    int wrong = he_frame_read(g, lane, peer, head, &came);
    if (wrong) return he_nonsense(g, peer, wrong);
    int code = he_differs(g, peer, &t->frame.call, &came.call);
    if (code || (came.number == t->frame.number && came.nbytes == t->frame.nbytes)) return code;
    return he_nonsense(g, peer, HE_WRONG_LENGTH);
}

/* What of the bytes that have come is taken now: the head as a whole, whole elements, what fills up. */
static int64_t take_some(he_group *g, int lane, int peer, he_transfer *t, int64_t size, he_sink sink, void *context, const unsigned char *at, int64_t there, int *code) {
    int64_t left = HE_FRAME_NBYTES + t->frame.nbytes - t->moved;
    if (t->moved < HE_FRAME_NBYTES) {
        if (there < HE_FRAME_NBYTES || (*code = is_expected(g, lane, peer, t, at))) return 0;
        return HE_FRAME_NBYTES;
    }
    if (left <= 0) return there < t->total - t->moved ? there : t->total - t->moved;
    int64_t n = (there < left ? there : left) / size;
    if (n) sink(context, (t->moved - HE_FRAME_NBYTES) / size, n, at);
    return n * size;
}

/* What lies there is taken in parts, so that the other side writes some while this one reads some. */
int he_receive(he_group *g, int lane, int peer, he_transfer *t, int64_t size, he_sink sink, void *context, int *moved) {
    int code = HE_OK;
    for (int64_t used = 1; used > 0 && !he_is_done(t);) {
        unsigned char *at;
        int64_t there, n = 1;
        if ((code = he_channel_peek(g, lane, peer, &at, &there))) return code;
        there = there < HE_RECORD_NBYTES ? there : HE_RECORD_NBYTES;
        for (used = 0; used < there && n > 0 && !he_is_done(t); used += n) {
            n = take_some(g, lane, peer, t, size, sink, context, at + used, there - used, &code);
            t->moved += n;
        }
        if (used > 0) he_channel_take(g, lane, peer, used);
        if (used > 0) *moved = 1;
        if (code) return code;
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
