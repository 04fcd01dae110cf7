/* Large messages out of memory that the ranks of this host map: the ring carries but where one lies. Where the receiver's
 * memory is such, too, both copy, piece by piece; else the receiver does. A pair has one such message at a time in each
 * direction, as the next one waits until this one has ended. */
#include "message.h"

#define TURN_PIECES 8 /* before other messages, and failures, are looked at */
#define READ_SOON 3   /* whoever receives a message reads it next: the caches keep messages of so many times STREAM_NBYTES */

/* Never what a loan says before the first message. */
static uint64_t mark_of(int64_t number) { return (uint64_t)number + 1; }

/* Copies pieces that nobody has taken, unless `dst` is NULL. Whether either rank has copied any since this one looked last. */
static int copy_some(he_group *g, int peer, he_loan *loan, he_lent *lent, unsigned char *dst, const unsigned char *src) {
    uint64_t all = he_pieces_of(lent->nbytes), seen = lent->seen, n = 0, k;
    while (dst && n < TURN_PIECES && __atomic_load_n(&loan->pieces, __ATOMIC_RELAXED) < all &&
           (k = __atomic_fetch_add(&loan->pieces, 1, __ATOMIC_RELAXED)) < all) {
        int64_t at = (int64_t)k * PIECE_NBYTES, left = lent->nbytes - at;
        he_copy(dst + at, src + at, left < PIECE_NBYTES ? left : PIECE_NBYTES, lent->nbytes / READ_SOON);
        n++;
    }
    if (n && __atomic_add_fetch(&loan->copied, n, __ATOMIC_SEQ_CST) >= all) he_ring_bell(g, HE_MESSAGES, peer);
    lent->seen = __atomic_load_n(&loan->copied, __ATOMIC_ACQUIRE);
    return lent->seen != seen;
}

int he_lend(he_group *g, int peer, int64_t number, he_lent *lent, const unsigned char *src, int *moved) {
    he_loan *loan = he_loan_of(g, g->rank, peer);
    int code = HE_OK;
    if (__atomic_load_n(&loan->ended, __ATOMIC_ACQUIRE) == mark_of(number)) lent->ended = *moved = 1;
    if (lent->ended || __atomic_load_n(&loan->open, __ATOMIC_ACQUIRE) != mark_of(number)) return HE_OK;
    he_place dst = loan->dst;
    if (dst.id && !lent->at && !(lent->at = he_found(g, peer, dst, lent->nbytes, &code))) return code;
    *moved |= copy_some(g, peer, loan, lent, lent->at, src);
    return HE_OK;
}

int he_borrow(he_group *g, int peer, int64_t number, he_lent *lent, unsigned char *dst, int *moved) {
    he_loan *loan = he_loan_of(g, peer, g->rank);
    int code = HE_OK;
    if (!lent->at) {
        if (!(lent->at = he_found(g, peer, lent->src, lent->nbytes, &code))) return code;
        loan->dst = he_place_of(g, dst);
        __atomic_store_n(&loan->pieces, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&loan->copied, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&loan->open, mark_of(number), __ATOMIC_SEQ_CST);
        he_ring_bell(g, HE_MESSAGES, peer);
        *moved = 1;
    }
    *moved |= copy_some(g, peer, loan, lent, dst, lent->at);
    if (lent->seen < he_pieces_of(lent->nbytes)) return HE_OK;
    __atomic_store_n(&loan->ended, mark_of(number), __ATOMIC_SEQ_CST);
    he_ring_bell(g, HE_MESSAGES, peer);
    lent->ended = 1;
    return HE_OK;
}
