#include "peer.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

/* Tries once. 0 when it was sent or nobody is there any more, EAGAIN when there is no room. */
static int try_send(int life, const he_message *message, int fd) {
    union { struct cmsghdr align; char bytes[CMSG_SPACE(sizeof fd)]; } control = {0};
    struct iovec part = {(void *)message, sizeof *message};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        header.msg_control = control.bytes;
        header.msg_controllen = sizeof control.bytes;
        *CMSG_FIRSTHDR(&header) = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(CMSG_FIRSTHDR(&header)), &fd, sizeof fd);
    }
    ssize_t sent = sendmsg(life, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
    return sent >= 0 || (errno != EAGAIN && errno != ENOBUFS) ? 0 : EAGAIN;
}

/* The watch closes connections, so they are used under its lock. */
static int try_send_held(he_group *g, int rank, const he_message *message, int fd) {
    he_watch_hold();
    int life = g->peers[rank].life;
    int error = life < 0 ? 0 : try_send(life, message, fd);
    he_watch_let_go();
    return error;
}

/* Sends with a descriptor (or -1); waits for room as long as a living rank needs to make it. */
int he_peer_send(he_group *g, int rank, const he_message *message, int fd) {
    int64_t until_ns = he_now() + 2 * g->heartbeat_ns;
    struct timespec moment = {0, 1000000};
    while (try_send_held(g, rank, message, fd)) {
        if (atomic_load(&g->failed)) return HE_OK;
        if (he_now() > until_ns) return he_fail(g, HE_SILENT, rank, g->rank, NULL, NULL, 0);
        nanosleep(&moment, NULL);
    }
    return HE_OK;
}

static he_message status(he_group *g) {
    he_end *end = &g->ends[g->here];
    he_message message = {.type = HE_BEAT, .presence = (int)__atomic_load_n(&end->presence, __ATOMIC_SEQ_CST)};
    message.last = he_last_read(&end->last, &message.done);
    message.failed = atomic_load(&g->failed);
    if (message.failed) message.failure = g->failure;
    return message;
}

/* Whether the group has failed and whether this rank leaves: what others should hear at once, but at once only once. Two
 * that leave would else answer each other for as long as both still do what they had begun. */
static int news_of(const he_message *status) { return !!status->failed + 2 * !!status->presence; }

/* To a rank of another host. What does not go out now is dropped, but for the rest of what has begun to go. */
static void tell(he_group *g, int rank, const he_message *message) {
    he_seal *seal = &g->peers[rank].seals[HE_LIFE];
    he_piece piece = {&g->telling[rank], sizeof *message};
    if (seal->carries && !he_seal_put(seal, g->peers[rank].life, &piece, 1)) return;
    g->telling[rank] = *message;
    he_seal_put(seal, g->peers[rank].life, &piece, 1);
}

/* Tells everybody that this process lives, and ranks of other hosts how it does. Those of this host, which see in the
 * segment that the group has failed, are told to look. */
void he_peer_beat(he_group *g, int64_t now_ns) {
    he_message message = status(g), news = {.type = HE_NEWS};
    int is_new = news_of(&message) != g->told;
    if (now_ns < g->next_beat_ns && !is_new) return;
    g->next_beat_ns = now_ns + g->beat_ns;
    g->told = news_of(&message);
    __atomic_add_fetch(&g->ends[g->here].beat, 1, __ATOMIC_RELEASE);
    for (int r = 0; r < g->size; r++) {
        if (g->peers[r].life < 0) continue;
        if (g->peers[r].remote) tell(g, r, &message);
        else if (is_new && message.failed) try_send(g->peers[r].life, &news, -1);
    }
}

/* `watcher` is a pidfd of the thread that watches here, which stays the caller's. A rank that has no room for it, which
 * cannot be so early, hears of this one's end by its connection. */
void he_peer_show_watcher(he_group *g, int watcher) {
    he_message message = {.type = HE_WATCHER};
    for (int r = 0; r < g->size; r++)
        if (!g->peers[r].remote && g->peers[r].life >= 0) try_send(g->peers[r].life, &message, watcher);
}

/* Nothing more of what comes is believed; this rank still tells the other one what happened. */
static void distrust(he_group *g, int rank, int code, int wrong) {
    g->peers[rank].deaf = 1;
    he_fail(g, code, rank, g->rank, NULL, NULL, wrong);
}

static void heard_beat(he_group *g, int rank, const he_message *message, int64_t now_ns) {
    he_peer *peer = &g->peers[rank];
    peer->heard_ns = now_ns;
    he_last_write(&peer->last, &message->last);
    if (message->last.sequence >= 0) he_last_ended(&peer->last, (uint64_t)message->last.sequence + message->done);
    if (message->presence) atomic_store(&peer->state, HE_LEFT);
    if (message->failed) he_adopt(g, rank, &message->failure);
}

static void handle(he_group *g, int rank, const void *bytes, int64_t nbytes, int fd, int64_t now_ns) {
    he_peer *peer = &g->peers[rank];
    he_message message;
    int wrong = he_message_read(g, rank, bytes, nbytes, fd >= 0, &message);
    if (!wrong && message.type == HE_SHARE) wrong = he_shared_arrived(g, rank, message.id, message.nbytes, fd);
    if (!wrong && message.type == HE_UNSHARE) wrong = he_shared_gone(g, rank, message.id);
    if (wrong) {
        distrust(g, rank, HE_NONSENSE, wrong);
        return;
    }
    if (message.type == HE_WATCHER && peer->watcher < 0) peer->watcher = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (message.type == HE_BEAT) heard_beat(g, rank, &message, now_ns);
}

static int descriptor_in(struct msghdr *header) {
    struct cmsghdr *control = CMSG_FIRSTHDR(header);
    int fd = -1;
    if (control && control->cmsg_type == SCM_RIGHTS) memcpy(&fd, CMSG_DATA(control), sizeof fd);
    return fd;
}

enum { NOTHING, SOMETHING, NO_MORE };

/* The next message of a rank of this host, which comes as a whole. */
static int hear_near(he_group *g, int rank, int64_t now_ns) {
    union { struct cmsghdr align; char bytes[CMSG_SPACE(sizeof(int))]; } control;
    unsigned char bytes[sizeof(he_message) + 1]; /* one more, so that a longer one is seen */
    struct iovec part = {bytes, sizeof bytes};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    ssize_t n = recvmsg(g->peers[rank].life, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0 && errno == EINTR) return SOMETHING;
    if (n <= 0) return n < 0 && errno == EAGAIN ? NOTHING : NO_MORE;
    int fd = descriptor_in(&header);
    handle(g, rank, bytes, n, fd, now_ns);
    if (fd >= 0) close(fd);
    return SOMETHING;
}

static int hear_far(he_group *g, int rank, int64_t now_ns) {
    he_peer *peer = &g->peers[rank];
    he_seal *seal = &peer->seals[HE_LIFE];
    unsigned char *at;
    int64_t there = he_seal_peek(seal, peer->life, &at);
    if (there == -HE_NO_MEMORY) {
        he_fail(g, HE_NO_MEMORY, g->rank, g->rank, NULL, NULL, 0);
        return NOTHING;
    }
    if (there < 0) distrust(g, rank, HE_TAMPERED, 0);
    if (there < 0) return NOTHING;
    if (!there) return seal->ended ? NO_MORE : NOTHING;
    handle(g, rank, at, there, -1, now_ns);
    he_seal_take(seal, there);
    return SOMETHING;
}

static int told_to_leave(const he_group *g, int rank) {
    if (g->peers[rank].remote) return atomic_load(&g->peers[rank].state) == HE_LEFT;
    return __atomic_load_n(&g->ends[g->index[rank]].presence, __ATOMIC_SEQ_CST) == HE_AWAY;
}

/* Its process has ended, or it has left the group before; what it told of a failure is the cause rather than its end. */
static void end(he_group *g, int rank) {
    he_peer *peer = &g->peers[rank];
    close(peer->life);
    if (peer->watcher >= 0) close(peer->watcher);
    peer->life = peer->watcher = -1;
    int left = told_to_leave(g, rank);
    atomic_store(&peer->state, left ? HE_LEFT : HE_ENDED);
    if (!left && !he_look(g)) he_fail(g, HE_ENDED, rank, g->rank, NULL, NULL, 0);
}

static int has_died(he_peer *peer) {
    struct pollfd watcher = {.fd = peer->watcher, .events = POLLIN};
    if (peer->watcher < 0 || poll(&watcher, 1, 0) != 1) return 0;
    if (watcher.revents & POLLNVAL) peer->watcher = -1; /* the program has closed what is not its own */
    return watcher.revents & POLLIN;
}

/* Reads all that the rank has said; what it said before it died too. */
void he_peer_hear(he_group *g, int rank, int64_t now_ns) {
    he_peer *peer = &g->peers[rank];
    int died = has_died(peer);
    while (peer->life >= 0 && !peer->deaf) {
        int heard = peer->remote ? hear_far(g, rank, now_ns) : hear_near(g, rank, now_ns);
        if (heard == NOTHING && !died) return;
        if (heard != SOMETHING) {
            end(g, rank);
            return;
        }
    }
}

/* A rank that has said nothing for a heartbeat is lost: it is stopped, or the way to it is cut. */
void he_peer_miss(he_group *g, int rank, int64_t now_ns) {
    he_peer *peer = &g->peers[rank];
    uint64_t beat = peer->remote ? 0 : __atomic_load_n(&g->ends[g->index[rank]].beat, __ATOMIC_ACQUIRE);
    if (peer->life < 0 || atomic_load(&peer->state) != HE_HERE) return;
    if (beat != peer->beat) peer->heard_ns = now_ns;
    peer->beat = beat;
    if (now_ns - peer->heard_ns <= g->heartbeat_ns) return;
    atomic_store(&peer->state, HE_SILENT);
    he_fail(g, HE_SILENT, rank, g->rank, NULL, NULL, 0);
}
