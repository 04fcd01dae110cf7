/* Feeds the engine what no rank says: `fuzz FRAMES SEED`. The code is the engine's own, without its threads. Rank 0 of
 * three has rank 1 on its host and rank 2 on another one; both say what is made of right words by changing fields and
 * bits, by cutting them off and by putting them together. Under AddressSanitizer and UBSan nothing may be found; what is
 * accepted must be what a second look allows; what is refused must be the fault of the rank that said it. */
#include "group.c"
#include "message.c"
#include "ring.c"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>

enum { SIZE = 3, NEAR = 1, FAR = 2, MOST_FRAMES = 6, MOST_NBYTES = 64 << 10, RECEIVES = 3, LENT_SIZE = 8 };
#define TIMEOUT_NS 1000000000000LL

static uint64_t state;
static he_group *g;
static int far_ends[SIZE], near_life; /* where rank 2 and rank 1 speak: the lanes and LIFE */
static he_seal far_seals[SIZE];
static int64_t frames, accepted, refused;
static unsigned char keys[SIZE * HE_SEALS * HE_KEY_NBYTES];

static void require(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "the fuzzer found: %s, after %lld frames\n", what, (long long)frames);
    abort();
}

static uint64_t any(void) { /* xorshift* */
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return state * 2685821657736338717ULL;
}

static int64_t below(int64_t n) { return (int64_t)(any() % (uint64_t)n); }

static int64_t odd(void) {
    static const int64_t values[] = {0, 1, -1, 2, 3, 7, 12, 13, 14, 15, 63, 64, 65, 255, 4096, 1 << 16, 1LL << 31, -(1LL << 31), 1LL << 32,
                                     1LL << 40, 1LL << 60, 1LL << 61, 1LL << 62, INT64_MAX, INT64_MAX - 63, INT64_MAX - 127, INT64_MIN};
    return below(4) ? values[below(sizeof values / sizeof *values)] : (int64_t)any();
}

/* Changes a field, some bits, or everything; or nothing. */
static void mutate(unsigned char *bytes, int64_t nbytes) {
    int64_t value = odd();
    switch (below(6)) {
    case 0: memcpy(bytes + below(nbytes / 8) * 8, &value, 8); break;
    case 1: memcpy(bytes + below(nbytes / 4) * 4, &value, 4); break;
    case 2: for (int64_t k = 1 + below(4); k > 0; k--) bytes[below(nbytes)] ^= (unsigned char)(1 << below(8)); break;
    case 3: if (!below(8)) for (int64_t k = 0; k < nbytes; k++) bytes[k] = (unsigned char)any(); break;
    default: break;
    }
}

static int in(int64_t x, int64_t first, int64_t last) { return first <= x && x <= last; }

/* A second look at what was accepted, in numbers that do not overflow. */
static void look_at_call(const he_call *call) {
    static const int sizes[] = {8, 4, 2, 2, 8, 4, 2, 1, 8, 4, 2, 1, 1, 1, 1};
    require(in(call->dtype, 0, HE_F8E5M2) && in(call->kind, 0, HE_RECV) && in(call->reduce, 0, HE_BXOR) && in(call->root, -1, SIZE - 1), "a wrong call");
    require(call->sequence >= -1 && call->count >= 0 && (__int128)call->count * sizes[call->dtype] < INT64_MAX, "a wrong count");
}

static void look_at_failure(const he_failure *f) {
    int cause = f->code & ~HE_ELSEWHERE;
    require(in(cause, HE_ENDED, HE_LAST_CODE) && cause != HE_FORKED && in(f->rank, 0, SIZE - 1) && in(f->told_by, 0, SIZE - 1), "a wrong failure");
    require(f->code == cause || f->detail >= 0, "a cause that is no rank of a job");
    require(f->code != HE_NONSENSE || in(f->detail, 1, HE_LAST_WRONG), "a wrong word for what is wrong");
    look_at_call(&f->ours);
    look_at_call(&f->theirs);
}

static he_call right_call(int kind) {
    return (he_call){below(50), below(200), any(), 0, kind, (int)below(HE_F8E5M2 + 1), (int)below(HE_BXOR + 1), -1 + (int)below(SIZE + 1)};
}

static void fuzz_readers(void) {
    unsigned char bytes[sizeof(he_message) + 8];
    he_call call = right_call((int)below(HE_SEND));
    he_frame frame;
    he_message message = {.type = (int)below(5), .presence = (int)below(2), .done = (int)below(2), .id = 1, .nbytes = 64, .last = call};
    message.failed = message.failure.code = (int)below(HE_LAST_CODE + 1) + (below(2) ? HE_ELSEWHERE : 0);
    memcpy(bytes, &message, sizeof message);
    mutate(bytes, sizeof message);
    int from = 1 + (int)below(2), with_fd = (int)below(2);
    if (!he_message_read(g, from, bytes, below(20) ? (int64_t)sizeof message : below(sizeof bytes), with_fd, &message)) {
        accepted++;
        require(from == FAR ? message.type == HE_BEAT : message.type != HE_BEAT, "a type that is not for this rank");
        if (message.type == HE_BEAT) look_at_call(&message.last);
        if (message.type == HE_BEAT && message.failed) look_at_failure(&message.failure);
        if (message.type == HE_SHARE) require(message.id > 0 && message.nbytes > 0 && with_fd, "wrong memory");
    } else refused++;
    int lane = (int)below(2);
    frame = (he_frame){right_call(lane == HE_MESSAGES ? HE_SEND : (int)below(HE_SEND)), below(9), below(9000)};
    if (lane == HE_MESSAGES) {
        frame.call.root = g->rank, frame.call.reduce = 0, frame.number = frame.call.sequence;
        if (!below(4)) frame.call.count += HE_LENT_NBYTES;
        frame.nbytes = below(2) ? he_elements_nbytes(&frame.call) : (int64_t)sizeof(he_place);
    }
    memcpy(bytes, &frame, sizeof frame);
    mutate(bytes, sizeof frame);
    if (!he_frame_read(g, lane, from, bytes, &frame)) {
        accepted++;
        look_at_call(&frame.call);
        require(frame.number >= 0 && in(frame.nbytes, 0, INT64_MAX - 128), "a wrong length");
        int64_t whole = he_elements_nbytes(&frame.call);
        int lent = from == NEAR && whole >= HE_LENT_NBYTES && frame.nbytes == (int64_t)sizeof(he_place);
        require(lane != HE_MESSAGES || frame.nbytes == whole || lent, "a length that is not that of the elements");
        require((frame.call.kind == HE_SEND) == (lane == HE_MESSAGES), "a call of the other lane");
        require(he_transfer_of(&frame.call, frame.number, frame.nbytes).total >= frame.nbytes, "a length that overflows");
    } else refused++;
    he_place place = {1, odd()};
    int64_t nbytes = odd(), needed = odd();
    if (nbytes >= 0 && he_place_fits(place, nbytes, needed))
        require(place.at >= 0 && needed >= 0 && (__int128)place.at + needed <= nbytes, "a place outside of its memory");
    int64_t held = he_ring_holds((uint64_t)odd(), (uint64_t)odd(), 4096);
    require(in(held, -1, 4096), "a ring that holds more than its room");
    frames += 2;
}

/* A message that is lent: 8-byte elements, so many that it may be, and where they lie. */
static int64_t make_lent(unsigned char *at, int64_t number) {
    he_call call = {number, HE_LENT_NBYTES / LENT_SIZE, (uint64_t)below(3), 0, HE_SEND, HE_F64, 0, g->rank};
    he_place place = {below(8) ? 1 : odd(), below(3) ? below(3) : odd()};
    he_transfer t = he_transfer_of(&call, number, sizeof place);
    memcpy(at, &t.frame, sizeof t.frame);
    memset(at + sizeof t.frame, 0, HE_FRAME_NBYTES);
    memcpy(at + sizeof t.frame, &place, sizeof place);
    if (!below(3)) mutate(at, sizeof t.frame);
    return t.total;
}

/* Memory of rank 1, of which it has told: a little more than a message that is lent. */
static void share_near(void) {
    he_shared *shared = calloc(1, sizeof *shared);
    *shared = (he_shared){.id = 1, .nbytes = HE_LENT_NBYTES + 1};
    shared->memory = mmap(NULL, shared->nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(shared->memory != MAP_FAILED, "no memory");
    g->peers[NEAR].shared = shared;
}

/* The bytes of frames, one after the other, of which some are changed. */
static int64_t make_frames(unsigned char *at, int lane, int lends) {
    int64_t n = 0;
    for (int64_t k = 0, count = 1 + below(MOST_FRAMES); k < count; k++, frames++) {
        if (lends && below(2)) {
            n += make_lent(at + n, k);
            continue;
        }
        he_call call = {k, below(10) ? below(9) : below(700), (uint64_t)below(3), 0, HE_SEND, (int)below(3), 0, g->rank};
        if (lane == HE_PROGRAMS) call = (he_call){k, 0, 5, 0, HE_ALL_REDUCE, HE_F32, HE_SUM, -1};
        int64_t nbytes = lane == HE_PROGRAMS ? 4 * 33 : call.count * he_nbytes_of(call.dtype);
        he_transfer t = he_transfer_of(&call, k, nbytes);
        memcpy(at + n, &t.frame, sizeof t.frame);
        memset(at + n + sizeof t.frame, (int)k + 1, t.total - sizeof t.frame);
        if (!below(3)) mutate(at + n, sizeof t.frame);
        n += t.total;
    }
    if (!below(8)) n = below(n + 1) / HE_FRAME_NBYTES * HE_FRAME_NBYTES;
    return n;
}

static void speak_far(int lane, unsigned char *bytes, int64_t n, int64_t most) {
    unsigned char record[HE_RECORD_HEAD_NBYTES + HE_RECORD_NBYTES + HE_TAG_NBYTES];
    for (int64_t at = 0, part; at < n; at += part) {
        part = n - at < most ? n - at : most;
        he_piece piece = {bytes + at, part};
        require(he_seal_put(&far_seals[lane], far_ends[lane], &piece, 1) == 1, "no room to speak");
    }
    if (below(8)) return;
    memset(record, (int)any(), sizeof record);
    he_record_write(below(most + 1), far_seals[lane].sent, record); /* a right one, but for its tag */
    mutate(record, HE_RECORD_HEAD_NBYTES);
    require(send(far_ends[lane], record, 1 + below(sizeof record), MSG_DONTWAIT) > 0, "no room for noise");
}

static void speak_near(int lane, const unsigned char *bytes, int64_t n) {
    he_ring *ring = ring_of(g, lane, NEAR, g->rank);
    int64_t all = room(g->nlocal);
    for (int64_t k = 0; k < n; k++) bytes_of(ring)[(ring->put + (uint64_t)k) % (uint64_t)all] = bytes[k];
    ring->put += (uint64_t)n;
    if (!below(20)) ring->put = (uint64_t)odd();
    if (!below(40)) ring->taken = (uint64_t)odd();
}

static he_work *begin_receive(int peer, int lends) {
    int64_t count = lends && below(2) ? HE_LENT_NBYTES / LENT_SIZE : below(9), dtype = count < 9 ? below(3) : HE_F64;
    void *buffer = malloc(count * he_nbytes_of((int)dtype)); /* so that a byte too much is found */
    he_message_work one = message_of(g, HE_RECV, (int)dtype, count, buffer, peer, below(3), TIMEOUT_NS), *m = kept(&one);
    pthread_mutex_lock(&g->lock);
    post(g, below(6) ? 2 * peer + 1 : he_from_anybody(g), m);
    pthread_mutex_unlock(&g->lock);
    return &m->work;
}

static void fuzz_inbox(int peer) {
    unsigned char bytes[MOST_NBYTES];
    he_work *works[RECEIVES];
    int moved = 1, code = 0;
    int lends = !below(8);
    int64_t n = make_frames(bytes, HE_MESSAGES, lends);
    if (lends) share_near();
    for (int i = 0; i < RECEIVES; i++) works[i] = begin_receive(peer, lends);
    if (peer == FAR) speak_far(HE_MESSAGES, bytes, n, below(3) ? HE_RECORD_NBYTES : HE_FRAME_NBYTES * (1 + below(5)));
    else speak_near(HE_MESSAGES, bytes, n);
    while (!code && moved) {
        moved = 0;
        code = he_inbox_turn(g, peer, &moved);
    }
    require(!code || g->failure.rank == peer, "blame for a rank that said nothing");
    require(in(code, 0, HE_LAST_CODE), "a code that there is not");
    code ? refused++ : accepted++;
    fail_all(g, code ? code : HE_ABORTED);
    for (int i = 0; i < RECEIVES; i++) {
        free(works[i]->dst);
        he_work_release(works[i]);
    }
    for (int q = 0; q < 2 * SIZE + 1; q++) {
        he_inbox_free(&g->messages[q]);
        g->messages[q] = (he_queue){0};
    }
    g->kept_nbytes = 0;
    he_shared_close(g);
}

/* What rank 1 says of a message that this rank lends it. */
static void fuzz_loan(void) {
    unsigned char *src = malloc(HE_LENT_NBYTES);
    he_lent lent = {.nbytes = HE_LENT_NBYTES};
    he_loan *loan = he_loan_of(g, g->rank, NEAR);
    he_call call = {.kind = HE_SEND, .root = NEAR};
    int moved, code = 0;
    share_near();
    for (int k = 0; k < 4 && !code && !lent.ended; k++) {
        *loan = (he_loan){.open = below(8) ? 1 : (uint64_t)odd(), .dst = {below(6) ? 1 - below(3) : odd(), below(2) ? below(3) : odd()}};
        loan->pieces = below(2) ? (uint64_t)below(20) : (uint64_t)odd();
        loan->copied = below(2) ? (uint64_t)below(20) : (uint64_t)odd();
        loan->ended = below(4) ? 0 : (uint64_t)odd();
        code = he_lend(g, NEAR, &call, &lent, src, &moved);
        frames++;
    }
    require(!code || g->failure.rank == NEAR, "blame for a rank that said nothing");
    code ? refused++ : accepted++;
    he_shared_close(g);
    free(src);
}

static void into_room(void *context, int64_t at, int64_t n, const unsigned char *bytes) { memcpy((char *)context + at * 4, bytes, n * 4); }

static void fuzz_program(int peer) {
    unsigned char bytes[MOST_NBYTES];
    char *room = malloc(4 * 33);
    int64_t n = make_frames(bytes, HE_PROGRAMS, 0);
    int code = 0;
    if (peer == FAR) speak_far(HE_PROGRAMS, bytes, n, HE_FRAME_NBYTES * (1 + below(20)));
    else speak_near(HE_PROGRAMS, bytes, n);
    for (int64_t k = 0; k < MOST_FRAMES && !code; k++) {
        he_call call = {k, 0, 5, 0, HE_ALL_REDUCE, HE_F32, HE_SUM, -1};
        he_transfer t = he_transfer_of(&call, k, 4 * 33);
        int moved = 0;
        code = he_receive(g, HE_PROGRAMS, peer, &t, 4, into_room, room, &moved);
        if (!he_is_done(&t)) break;
        accepted++;
    }
    require(!code || g->failure.rank == peer, "blame for a rank that said nothing");
    if (code) refused++;
    free(room);
}

static void fuzz_life(int peer) {
    he_message message = {.type = peer == FAR ? HE_BEAT : 1 + (int)below(3), .presence = 0, .id = 1 + below(3), .nbytes = 1 + below(8192)};
    message.last = right_call((int)below(HE_SEND));
    message.failed = message.failure.code = below(3) ? 0 : (int)below(HE_LAST_CODE + 1);
    unsigned char bytes[sizeof message + 1] = {0};
    memcpy(bytes, &message, sizeof message);
    mutate(bytes, sizeof message);
    frames++;
    if (peer == FAR) speak_far(HE_LIFE, bytes, sizeof message, below(9) ? (int64_t)sizeof message : HE_FRAME_NBYTES);
    else {
        int fd = !below(4) ? memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING) : -1;
        if (fd >= 0) require(!ftruncate(fd, 4096), "no memory");
        if (fd >= 0 && below(2)) fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
        union { struct cmsghdr align; char bytes[CMSG_SPACE(sizeof fd)]; } control = {0};
        struct iovec part = {bytes, below(20) ? sizeof message : (size_t)below(sizeof bytes) + 1};
        struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
        if (fd >= 0) {
            header.msg_control = control.bytes;
            header.msg_controllen = sizeof control.bytes;
            *CMSG_FIRSTHDR(&header) = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
            memcpy(CMSG_DATA(CMSG_FIRSTHDR(&header)), &fd, sizeof fd);
        }
        require(sendmsg(near_life, &header, MSG_DONTWAIT) > 0, "no room to speak");
        if (fd >= 0) close(fd);
    }
    he_peer_hear(g, peer, he_now());
    int code = atomic_load(&g->failed);
    if (code) look_at_failure(&g->failure);
    code ? refused++ : accepted++;
    require(g->peers[peer].life >= 0, "a connection that ended without an end");
    for (const he_shared *s = g->peers[peer].shared; s; s = s->next) require(!s->memory[s->nbytes - 1], "memory that is not empty");
    he_shared_close(g);
}

/* Memory of the segment that rank 1 writes. */
static void fuzz_segment(void) {
    he_end *end = &g->ends[g->index[NEAR]];
    he_failure failure = {.code = 1 + (int)below(HE_LAST_CODE) + (below(2) ? HE_ELSEWHERE : 0), .rank = NEAR, .told_by = NEAR};
    he_call call = right_call(HE_ALL_REDUCE);
    unsigned char bytes[sizeof failure];
    memcpy(bytes, &failure, sizeof failure);
    mutate(bytes, sizeof bytes);
    memcpy(&end->failure, bytes, sizeof bytes);
    memcpy(bytes, &call, sizeof call);
    mutate(bytes, sizeof call);
    memcpy(&end->last.calls, bytes, sizeof call);
    memcpy(&end->last.calls[1], bytes, sizeof call);
    end->last.told = (uint64_t)odd();
    int done, told = (int)below(2);
    he_call last = he_last_read(&end->last, &done), ours = right_call(HE_ALL_REDUCE);
    end->failed = (uint32_t)told;
    g->head->alarm++;
    if (told) he_look(g);
    else if (below(2)) he_fail_late(g, NEAR, &ours, &last, done);
    else he_differs(g, NEAR, &ours, bytes);
    if (atomic_load(&g->failed)) look_at_failure(&g->failure);
    frames++;
}

static void drain(int fd) {
    static char sink[1 << 18];
    while (recv(fd, sink, sizeof sink, MSG_DONTWAIT) > 0) continue;
}

/* As if nothing had been said yet. */
static void begin_again(void) {
    int failed = atomic_load(&g->failed);
    require(atomic_load(&g->failing) == (failed != 0), "a failure without a code, for which others would wait");
    for (int i = 0; i < HE_SEALS; i++) {
        he_seal *s = &g->peers[FAR].seals[i];
        int fd = i == HE_LIFE ? g->peers[FAR].life : g->peers[FAR].data[i];
        if (failed || s->start != s->end) drain(fd);
        s->sent = s->came = far_seals[i].sent = far_seals[i].came = 0;
        s->start = s->end = s->open = s->ended = 0;
    }
    for (int lane = 0; lane < HE_LANES; lane++) {
        he_ring *ring = ring_of(g, lane, NEAR, g->rank);
        ring->put = ring->taken = (uint64_t)below(room(g->nlocal) / 64) * 64;
        ring->loan = (he_loan){0};
    }
    for (int r = 1; r < SIZE; r++) {
        g->peers[r].deaf = 0;
        atomic_store(&g->peers[r].state, HE_HERE);
        if (g->peers[r].watcher >= 0) close(g->peers[r].watcher);
        g->peers[r].watcher = -1;
    }
    for (int i = 0; i < g->nlocal; i++) g->ends[i].failed = 0;
    atomic_store(&g->failing, 0);
    atomic_store(&g->failed, 0);
}

static void pair(int type, int *here, int *there) {
    int ends[2], room = 4 << 20;
    require(!socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends), "no sockets");
    setsockopt(ends[1], SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room);
    *here = ends[0], *there = ends[1];
}

static void make_group(void) {
    int local[] = {0, NEAR}, life[SIZE] = {-1, -1, -1}, data[2 * SIZE] = {-1, -1, -1, -1, -1, -1};
    pair(SOCK_SEQPACKET, &life[NEAR], &near_life);
    pair(SOCK_STREAM, &life[FAR], &far_ends[HE_LIFE]);
    for (int lane = 0; lane < HE_LANES; lane++) pair(SOCK_STREAM, &data[2 * FAR + lane], &far_ends[lane]);
    for (size_t i = 0; i < sizeof keys; i++) keys[i] = (unsigned char)i;
    g = new_group(0, SIZE, 2);
    know_ranks(g, local, life, data, NULL);
    seal(g, keys);
    g->heartbeat_ns = TIMEOUT_NS;
    int segment = memfd_create("segment", MFD_CLOEXEC);
    require(!ftruncate(segment, he_segment_nbytes(2, SIZE)) && he_segment_map(g, segment), "no segment");
    for (int i = 0; i < HE_SEALS; i++) {
        int64_t most = i == HE_LIFE ? (int64_t)sizeof(he_message) : HE_RECORD_NBYTES;
        he_seal_init(&far_seals[i], g->peers[FAR].seals[i].key, FAR, 0, most);
    }
    atomic_store(&g->refs, 1 << 30);
}

int main(int argc, char **argv) {
    int64_t wanted = argc > 1 ? atoll(argv[1]) : 100000;
    state = (argc > 2 ? strtoull(argv[2], NULL, 10) : 1) * 0x9e3779b97f4a7c15ULL | 1;
    signal(SIGPIPE, SIG_IGN);
    make_group();
    while (frames < wanted) {
        alarm(60); /* a case that does not end is a finding, too */
        int peer = below(2) ? FAR : NEAR;
        switch (below(16)) {
        case 0: case 1: case 2: case 3: fuzz_inbox(peer); break;
        case 4: case 5: fuzz_program(peer); break;
        case 6: case 7: fuzz_life(peer); break;
        case 8: fuzz_segment(); break;
        case 9: if (!below(4)) fuzz_loan(); break;
        default: for (int k = 0; k < 4; k++) fuzz_readers(); break;
        }
        begin_again();
    }
    printf("%lld frames: %lld accepted, %lld refused\n", (long long)frames, (long long)accepted, (long long)refused);
    return 0;
}
