#include "frame.h"

enum { MOST_SIZE = 8 }; /* bytes of the longest element */

static int among(int64_t value, int64_t first, int64_t last) { return value >= first && value <= last; }

static int is_call(const he_group *g, const he_call *call) {
    return call->sequence >= -1 && among(call->count, 0, INT64_MAX / MOST_SIZE - HE_FRAME_NBYTES) &&
           among(call->kind, HE_ALL_REDUCE, HE_RECV) && among(call->dtype, HE_F64, HE_F8E5M2) &&
           among(call->reduce, HE_SUM, HE_BXOR) && among(call->root, -1, g->size - 1);
}

int he_call_read(const he_group *g, const void *bytes, he_call *call) {
    memcpy(call, bytes, sizeof *call);
    return is_call(g, call) ? 0 : HE_WRONG_CALL;
}

int he_frame_read(const he_group *g, int lane, int from, const void *bytes, he_frame *frame) {
    memcpy(frame, bytes, sizeof *frame);
    const he_call *call = &frame->call;
    if (!is_call(g, call) || call->sequence < 0 || call->kind == HE_RECV || (call->kind == HE_SEND) != (lane == HE_MESSAGES)) return HE_WRONG_CALL;
    if (frame->number < 0 || !among(frame->nbytes, 0, INT64_MAX - 2 * HE_FRAME_NBYTES)) return HE_WRONG_LENGTH;
    if (lane != HE_MESSAGES) return 0;
    if (call->root != g->rank || call->reduce != 0 || call->name != 0 || frame->number != call->sequence) return HE_WRONG_CALL;
    if (!he_is_lent(frame)) return 0;
    int may = !g->peers[from].remote && he_elements_nbytes(call) >= HE_LENT_NBYTES;
    return may && frame->nbytes == (int64_t)sizeof(he_place) ? 0 : HE_WRONG_LENGTH;
}

/* Whether a rank tells others of such a failure. That of a fork is the process's own. */
static int is_told(int code) { return among(code, HE_ENDED, HE_LAST_CODE) && code != HE_FORKED; }

static int is_detail(const he_failure *failure) {
    switch (failure->code) {
    case HE_NONSENSE: return among(failure->detail, HE_WRONG_CALL, HE_LAST_WRONG);
    case HE_LATE: return among(failure->detail, 0, 1);
    default: return failure->code & HE_ELSEWHERE ? failure->detail >= 0 : !failure->detail;
    }
}

static int is_failure(const he_group *g, const he_failure *failure) {
    return failure->code >= 0 && is_told(failure->code & ~HE_ELSEWHERE) && is_detail(failure) && among(failure->rank, 0, g->size - 1) &&
           among(failure->told_by, 0, g->size - 1) && is_call(g, &failure->ours) && is_call(g, &failure->theirs);
}

int he_failure_read(const he_group *g, const void *bytes, he_failure *failure) {
    memcpy(failure, bytes, sizeof *failure);
    return is_failure(g, failure) ? 0 : HE_WRONG_FAILURE;
}

static int beat_read(const he_group *g, const he_message *message) {
    if (!among(message->presence, HE_HERE, HE_AWAY) || !among(message->done, 0, 1)) return HE_WRONG_WORD;
    if (!is_call(g, &message->last)) return HE_WRONG_CALL;
    if (!message->failed) return 0;
    return message->failed == message->failure.code && is_failure(g, &message->failure) ? 0 : HE_WRONG_FAILURE;
}

int he_message_read(const he_group *g, int from, const void *bytes, int64_t nbytes, int with_fd, he_message *message) {
    if (nbytes != sizeof *message) return HE_WRONG_WORD;
    memcpy(message, bytes, sizeof *message);
    if (g->peers[from].remote) return message->type == HE_BEAT && !with_fd ? beat_read(g, message) : HE_WRONG_WORD;
    switch (message->type) {
    case HE_SHARE: return with_fd && message->id > 0 && message->nbytes > 0 ? 0 : HE_WRONG_MEMORY;
    case HE_UNSHARE: return !with_fd && message->id > 0 ? 0 : HE_WRONG_MEMORY;
    case HE_WATCHER: return with_fd ? 0 : HE_WRONG_WORD;
    case HE_NEWS: return with_fd ? HE_WRONG_WORD : 0;
    default: return HE_WRONG_WORD;
    }
}

int he_place_fits(he_place place, int64_t nbytes, int64_t needed) {
    return among(place.at, 0, nbytes) && among(needed, 0, nbytes - place.at);
}

int64_t he_ring_holds(uint64_t put, uint64_t taken, int64_t room) {
    return put - taken <= (uint64_t)room ? (int64_t)(put - taken) : -1;
}

typedef struct {
    uint64_t nbytes, number;
} record_head;

int64_t he_record_read(const void *bytes, uint64_t number, int64_t most) {
    record_head head;
    memcpy(&head, bytes, sizeof head);
    int whole = head.nbytes && head.nbytes <= (uint64_t)most && head.nbytes % HE_FRAME_NBYTES == 0;
    return whole && head.number == number ? (int64_t)head.nbytes : -1;
}

void he_record_write(int64_t carries, uint64_t number, void *bytes) {
    record_head head = {(uint64_t)carries, number};
    memcpy(bytes, &head, sizeof head);
}
