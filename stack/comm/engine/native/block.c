/* The arithmetic of a program's steps. INPUT and OUTPUT have the call's element type; SCRATCH of a reduction, and the
 * messages that come from it, have the type of accumulation, which is another one for the two-byte floats. */
#include "program.h"

static int has_wide(const he_work *w) { return he_reduces(w->call.kind) && he_is_short(w->call.dtype); }

static int is_wide(const he_work *w, int place) { return place == HE_SCRATCH && has_wide(w); }

/* The bytes of an element. */
int64_t he_place_nbytes(const he_work *w, int place) { return is_wide(w, place) ? 4 : he_nbytes_of(w->call.dtype); }

int64_t he_message_nbytes(const he_work *w, const he_step *s) { return s->wide && has_wide(w) ? 4 : he_nbytes_of(w->call.dtype); }

static unsigned char *place_at(const he_work *w, int place, int64_t at) {
    return w->program->places[place] + at * he_place_nbytes(w, place);
}

/* Elements in the type of accumulation, where there is one; in `room` unless they lie so already. */
static const void *widened(const he_work *w, int wide, const unsigned char *at, float *room, int64_t n) {
    return has_wide(w) && !wide ? he_widen(w->call.dtype, at, room, n) : at;
}

static const void *operand(const he_work *w, int place, int64_t at, float *room, int64_t n) {
    return widened(w, is_wide(w, place), place_at(w, place, at), room, n);
}

static void put(he_group *g, const he_work *w, const he_step *s, int64_t at, const void *value, int64_t n) {
    unsigned char *dst = place_at(w, s->dst_place, s->dst + at);
    _Alignas(64) double room[HE_BLOCK];
    if (s->final && w->call.reduce == HE_AVG && he_reduces(w->call.kind)) {
        memcpy(room, value, n * (has_wide(w) ? 4 : he_nbytes_of(w->call.dtype)));
        he_divide(w->call.dtype, room, n, g->size);
        value = room;
    }
    if (has_wide(w) && !is_wide(w, s->dst_place)) he_narrow(w->call.dtype, dst, value, n);
    else if (value != dst) he_near(dst, value, n * he_place_nbytes(w, s->dst_place));
}

/* n <= HE_BLOCK elements of a step from its element `at` on; `message` is what has come for a step that receives. */
static void block(he_group *g, const he_work *w, const he_step *s, int64_t at, int64_t n, const unsigned char *message) {
    _Alignas(64) float a_room[HE_BLOCK], b_room[HE_BLOCK];
    _Alignas(64) double sum[HE_BLOCK];
    const void *came = message ? widened(w, (int)s->wide, message, b_room, n) : NULL;
    if (s->op == HE_STEP_RECV) {
        put(g, w, s, at, came, n);
        return;
    }
    const void *src = operand(w, (int)s->src_place, s->src + at, a_room, n);
    if (s->op == HE_STEP_COPY) {
        put(g, w, s, at, src, n);
        return;
    }
    const void *other = came ? came : operand(w, (int)s->other_place, s->other + at, b_room, n);
    he_fold(w->call.dtype, w->call.reduce, sum, src, other, n);
    put(g, w, s, at, sum, n);
}

void he_block(he_group *g, const he_work *w, const he_step *s, int64_t at, int64_t n, const unsigned char *message) {
    int64_t size = he_message_nbytes(w, s);
    for (int64_t i = 0, k; i < n; i += k) {
        k = n - i < HE_BLOCK ? n - i : HE_BLOCK;
        block(g, w, s, at + i, k, message ? message + i * size : NULL);
    }
}

/* A step that has no message. */
void he_local(he_group *g, const he_work *w, const he_step *s) { he_block(g, w, s, 0, s->count, NULL); }
