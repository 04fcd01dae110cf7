/* Messages between two ranks, each a frame: a head of 64 bytes, the data, and what fills the last 64 bytes up. Those of
 * a lane and a direction come in the order in which they were sent. Between ranks of one host they go through a ring in
 * the shared segment, else through a socket. */
#ifndef HAL_ENGINE_CHANNEL_H
#define HAL_ENGINE_CHANNEL_H

#include "frame.h"

enum { HE_IN_PROCESS = -1 };

/* The lent message that is copied between two ranks: it has a mark, which no other one of theirs has. The receiver writes
 * `dst`, then `open`, then, once all is there, `ended`. It has told by `reaches` before whether it can read in the sender's process.
 * `visits` counts what the sender writes in the receiver's process now, for a message or a collective. */
typedef struct {
    _Alignas(LINE) uint64_t open, ended;
    uint32_t reaches, visits;
    he_place dst;                    /* of id HE_IN_PROCESS: an address in the receiver's process */
    _Alignas(LINE) uint64_t pieces;  /* taken by either rank */
    _Alignas(LINE) uint64_t copied;  /* of these, copied */
} he_loan;

/* A ring's counters of bytes put and taken; its bytes follow. */
typedef struct {
    _Alignas(LINE) uint64_t put;
    _Alignas(LINE) uint64_t taken;
    he_loan loan;
} he_ring;

/* A message on its way: `moved` bytes of the frame, which has `total`. */
typedef struct {
    he_frame frame;
    int64_t moved, total;
} he_transfer;

/* Takes elements [at, at + n) of a message. */
typedef void (*he_sink)(void *context, int64_t at, int64_t n, const unsigned char *bytes);

he_transfer he_transfer_of(const he_call *call, int64_t number, int64_t nbytes);
/* These move what can be moved now, and set `moved` if anything was. A code where the group has failed: a message is not
 * the expected one, or was changed on its way. */
int he_send(he_group *g, int lane, int peer, he_transfer *t, const unsigned char *data, int *moved);
int he_receive(he_group *g, int lane, int peer, he_transfer *t, int64_t size, he_sink sink, void *context, int *moved);
static inline int he_is_done(const he_transfer *t) { return t->moved == t->total; }

/* channel.c */
/* How many bytes have come, and lie at `at`; a code where the group has failed. */
int he_channel_peek(he_group *g, int lane, int peer, unsigned char **at, int64_t *there);
void he_channel_take(he_group *g, int lane, int peer, int64_t n);
/* ring.c */
int64_t he_rings_nbytes(int nlocal);
void he_ring_bell(he_group *g, int lane, int rank);
/* How many bytes of the pieces were put, and how many lie at `at`; -1 where the ring cannot be right. */
int64_t he_ring_put(he_group *g, int lane, int peer, const he_piece *pieces, int count);
int he_ring_has(he_group *g, int lane, int peer);
int64_t he_ring_peek(he_group *g, int lane, int peer, unsigned char **at);
void he_ring_take(he_group *g, int lane, int peer, int64_t n);
he_loan *he_loan_of(he_group *g, int from, int to);

/* What a lane's thread waits for: for each rank whether it has something to send to it, or to receive from it. */
typedef struct {
    unsigned char *sends, *receives;
} he_interest;

/* Sleeps until something may move on the lane, a little while at most. `bell` is what he_bell gave before the last
 * vain try. */
uint32_t he_bell(he_group *g, int lane);
void he_lane_sleep(he_group *g, int lane, uint32_t bell, const he_interest *interest);

#endif
