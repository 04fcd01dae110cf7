/* A chunk program of one rank while it runs. The columns of a step and their meaning are those of
 * `stack.comm.plan.flat`. */
#ifndef HAL_ENGINE_PROGRAM_H
#define HAL_ENGINE_PROGRAM_H

#include "channel.h"

enum { HE_STEP_SEND, HE_STEP_RECV, HE_STEP_RECV_REDUCE, HE_STEP_COPY, HE_STEP_REDUCE };
enum { HE_INPUT, HE_OUTPUT, HE_SCRATCH, HE_PLACES };

typedef struct {
    int64_t op, peer, message, wide, count, dst_place, dst, src_place, src, other_place, other, final, after_start, after_stop;
} he_step;

/* The messages to or from one rank, in their order: steps[next] is the one that moves. */
typedef struct {
    int *steps;
    int n, next;
    he_transfer transfer;
    int begun;
} he_flow;

typedef struct he_program {
    const he_step *steps;
    const int64_t *after;
    int n, left;
    int *waits;              /* for each step: how many it still waits for */
    int *first, *successors; /* those that wait for step i: successors[first[i] .. first[i + 1]) */
    int *ready;              /* local steps that can run */
    int nready;
    int *messages;           /* what the flows' steps point into */
    he_flow *out, *in;       /* by rank */
    unsigned char *places[HE_PLACES];
    unsigned char *sends, *receives;
    int64_t moved_ns, scratch_count;
} he_program;

/* block.c */
int64_t he_place_nbytes(const he_work *w, int place);
int64_t he_message_nbytes(const he_work *w, const he_step *s);
void he_block(he_group *g, const he_work *w, const he_step *s, int64_t at, int64_t n, const unsigned char *message);
void he_local(he_group *g, const he_work *w, const he_step *s);

#endif
