/* Large messages out of memory that the ranks of this host map, or that the receiver reads in the sender's process: the ring
 * carries but where one lies. Both copy, piece by piece, where the sender maps the receiver's memory or writes in its process;
 * else the receiver does. A pair has one such message at a time in each direction, as the next one waits until this one has ended. */
#include "message.h"

#define TURN_PIECES 8 /* before other messages, and failures, are looked at */
#define READ_SOON 3   /* whoever receives a message reads it next: the caches keep messages of so many times STREAM_NBYTES */

/* Never what a loan says before the first message. */
static uint64_t mark_of(int64_t number) { return (uint64_t)number + 1; }

/* One rank's way to the other's memory: a process, 0 where it is mapped; and whether it writes there. */
typedef struct {
    const he_call *call;
    int process, writes;
} he_way;

static int copy(he_group *g, int peer, he_lent *lent, he_way way, unsigned char *dst, const unsigned char *src, int64_t n) {
    if (way.process && way.writes) return he_write(g, way.call, way.process, peer, (uint64_t)(uintptr_t)dst, src, n);
    if (way.process) return he_read(g, way.call, way.process, peer, (uint64_t)(uintptr_t)src, dst, n);
    he_copy(dst, src, n, lent->nbytes / READ_SOON);
    return HE_OK;
}

/* Copies pieces that nobody has taken, unless `dst` is NULL. Sets `moved` if either rank has copied any since this one looked
 * last. */
static int copy_some(he_group *g, int peer, he_loan *loan, he_lent *lent, he_way way, unsigned char *dst, const unsigned char *src, int *moved) {
    uint64_t all = he_pieces_of(lent->nbytes), seen = lent->seen, n = 0, k, taken = way.process ? he_pieces_at_once(lent->nbytes) : 1;
    while (dst && n < TURN_PIECES && __atomic_load_n(&loan->pieces, __ATOMIC_RELAXED) < all &&
           (k = __atomic_fetch_add(&loan->pieces, taken, __ATOMIC_RELAXED)) < all) {
        int64_t at = (int64_t)k * PIECE_NBYTES, left = lent->nbytes - at, most = (int64_t)taken * PIECE_NBYTES;
        int code = copy(g, peer, lent, way, dst + at, src + at, left < most ? left : most);
        if (code) return code;
        n += all - k < taken ? all - k : taken;
    }
    if (n && __atomic_add_fetch(&loan->copied, n, __ATOMIC_SEQ_CST) >= all) he_ring_bell(g, HE_MESSAGES, peer);
    lent->seen = __atomic_load_n(&loan->copied, __ATOMIC_ACQUIRE);
    *moved |= lent->seen != seen;
    return HE_OK;
}

int he_lend(he_group *g, int peer, const he_call *call, he_lent *lent, const unsigned char *src, int *moved) {
    he_loan *loan = he_loan_of(g, g->rank, peer);
    int code = HE_OK, process = 0;
    if (__atomic_load_n(&loan->ended, __ATOMIC_ACQUIRE) == mark_of(call->sequence)) lent->ended = *moved = 1;
    if (lent->ended || __atomic_load_n(&loan->open, __ATOMIC_ACQUIRE) != mark_of(call->sequence)) return HE_OK;
    he_place dst = loan->dst;
    unsigned char *at = lent->at;
    if (dst.id == HE_IN_PROCESS) {
        process = he_attach_one(g, peer) ? g->peers[peer].lender : 0;
        at = process ? (unsigned char *)(uintptr_t)dst.at : NULL;
    } else if (dst.id && !at && !(at = lent->at = he_found(g, peer, dst, lent->nbytes, &code))) {
        return code;
    }
    return copy_some(g, peer, loan, lent, (he_way){call, process, 1}, at, src, moved);
}

/* Where the lent bytes are; NULL before their memory has come, and with a code. */
static unsigned char *found(he_group *g, int peer, const he_lent *lent, int process, int *code) {
    return process ? (unsigned char *)(uintptr_t)lent->src.at : he_found(g, peer, lent->src, lent->nbytes, code);
}

int he_borrow(he_group *g, int peer, const he_frame *frame, he_lent *lent, unsigned char *dst, int *moved) {
    he_loan *loan = he_loan_of(g, peer, g->rank);
    int code = HE_OK, process = lent->src.id == HE_IN_PROCESS && g->peers[peer].lender > 0 ? g->peers[peer].lender : 0;
    if (!lent->at) {
        if (!(lent->at = found(g, peer, lent, process, &code))) return code;
        loan->dst = he_place_of(g, dst);
        if (!loan->dst.id) loan->dst = (he_place){HE_IN_PROCESS, (int64_t)(uintptr_t)dst};
        __atomic_store_n(&loan->pieces, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&loan->copied, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&loan->open, mark_of(frame->number), __ATOMIC_SEQ_CST);
        he_ring_bell(g, HE_MESSAGES, peer);
        *moved = 1;
    }
    if ((code = copy_some(g, peer, loan, lent, (he_way){&frame->call, process, 0}, dst, lent->at, moved))) return code;
    if (lent->seen < he_pieces_of(lent->nbytes)) return HE_OK;
    if ((code = he_look(g))) return code; /* a sender that has failed may have written what was read last */
    __atomic_store_n(&loan->ended, mark_of(frame->number), __ATOMIC_SEQ_CST);
    he_ring_bell(g, HE_MESSAGES, peer);
    lent->ended = 1;
    return HE_OK;
}
