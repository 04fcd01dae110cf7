/* The one place where bytes that another process or host wrote become values. Each function copies the bytes first,
 * as they may lie in memory that others write, and then looks at every length, number, code and rank. It gives 0, or
 * HE_WRONG_... that tells what no rank would have said; the value is for use only after 0. */
#ifndef HAL_ENGINE_FRAME_H
#define HAL_ENGINE_FRAME_H

#include "engine.h"

enum { HE_PROGRAMS, HE_MESSAGES, HE_LANES, HE_LIFE = HE_LANES, HE_SEALS };
enum { HE_FRAME_NBYTES = 64 };
#define HE_LENT_NBYTES (1LL << 20) /* from here on a message may be lent; no ring has room for it */

/* The head of a message. Behind it come the bytes of its elements, or, of one that is lent, a he_place: where they lie. */
typedef struct {
    he_call call;
    int64_t number, nbytes;
} he_frame;
_Static_assert(sizeof(he_frame) == HE_FRAME_NBYTES, "a head is as long as others think");

/* HE_NEWS: the group has failed, as the segment tells. */
enum { HE_BEAT, HE_SHARE, HE_UNSHARE, HE_WATCHER, HE_NEWS };

/* What ranks tell each other over their life connections. */
typedef struct he_message {
    int32_t type, presence, done, failed;
    int64_t id, nbytes;  /* of HE_SHARE and HE_UNSHARE */
    he_call last;        /* of HE_BEAT, which goes to ranks of other hosts alone */
    he_failure failure;
} he_message;
_Static_assert(sizeof(he_message) % HE_FRAME_NBYTES == 0, "it fills a record");

/* The call that rank `from` told of. */
int he_call_read(const he_group *g, const void *bytes, he_call *call);
/* A message's head that has come on a lane from rank `from`. */
int he_frame_read(const he_group *g, int lane, int from, const void *bytes, he_frame *frame);
/* How many bytes the elements of a message have, and whether it is lent. */
static inline int64_t he_elements_nbytes(const he_call *call) { return call->count * he_nbytes_of(call->dtype); }
static inline int he_is_lent(const he_frame *frame) { return frame->nbytes != he_elements_nbytes(&frame->call); }
int he_failure_read(const he_group *g, const void *bytes, he_failure *failure);
/* What came over the life connection of rank `from`, with a descriptor or without. */
int he_message_read(const he_group *g, int from, const void *bytes, int64_t nbytes, int with_fd, he_message *message);
/* A place in memory of `nbytes`, of which `needed` bytes are used. */
int he_place_fits(he_place place, int64_t nbytes, int64_t needed);
/* How many bytes a ring of `room` bytes holds by its counters; -1 where it cannot. */
int64_t he_ring_holds(uint64_t put, uint64_t taken, int64_t room);
/* What the record with this head and number carries, at most `most` bytes; -1 for another head. */
int64_t he_record_read(const void *bytes, uint64_t number, int64_t most);
void he_record_write(int64_t carries, uint64_t number, void *bytes);

#endif
