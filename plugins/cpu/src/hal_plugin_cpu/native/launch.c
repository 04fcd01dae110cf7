/* Programs, bound launches, copies and fills. */
#include "runtime.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define PIECE (256LL << 10)
#define STREAMED (8LL << 20) /* A copy of so many bytes does not stay in a processor's own caches. */

int64_t hc_pieces(int64_t nbytes) { return (nbytes + PIECE - 1) / PIECE; }

/* The pattern repeated to eight bytes. */
uint64_t hc_widen(uint64_t pattern, int nbytes) {
    if (nbytes == 1) pattern = (pattern & 0xff) * 0x0101010101010101ULL;
    if (nbytes == 2) pattern = (pattern & 0xffff) * 0x0001000100010001ULL;
    if (nbytes == 4) pattern = (pattern & 0xffffffff) * 0x0000000100000001ULL;
    return pattern;
}

/* Writes bytes [from, to) of a region; pieces begin at multiples of eight, so the pattern's phase is kept. */
static void fill(unsigned char *dst, uint64_t pattern, int64_t from, int64_t to) {
    int64_t i = from;
    if (pattern == (pattern & 0xff) * 0x0101010101010101ULL) {
        memset(dst + from, (int)(pattern & 0xff), to - from);
        return;
    }
    for (; i + 8 <= to; i += 8) memcpy(dst + i, &pattern, 8);
    memcpy(dst + i, &pattern, to - i);
}

/* Copies past the caches: what is written is not fetched first, which takes a third of the traffic. */
static void stream(unsigned char *dst, const unsigned char *src, int64_t n) {
#ifdef __SSE2__
    int64_t at = -(int64_t)(uintptr_t)dst & 63;
    if (n < at + 64) at = n;
    memcpy(dst, src, at);
    for (; at + 64 <= n; at += 64) {
        _mm_prefetch((const char *)src + at + 1024, _MM_HINT_T0); /* which fails nowhere */
        for (int k = 0; k < 64; k += 16)
            _mm_stream_si128((__m128i *)(dst + at + k), _mm_loadu_si128((const __m128i *)(src + at + k)));
    }
    memcpy(dst + at, src + at, n - at);
    _mm_sfence();
#else
    memcpy(dst, src, n);
#endif
}

static int overlaps(const hc_item *item) {
    return item->dst < item->src + item->nbytes && item->src < item->dst + item->nbytes;
}

static void run_transfer(hc_item *item, int64_t begin, int64_t end) {
    int64_t from = begin * PIECE, to = end * PIECE < item->nbytes ? end * PIECE : item->nbytes;
    if (to <= from) return;
    if (item->run == HC_RUN_COPY && item->nbytes >= STREAMED && !overlaps(item))
        stream(item->dst + from, item->src + from, to - from);
    else if (item->run == HC_RUN_COPY) memmove(item->dst + from, item->src + from, to - from);
    else fill(item->dst, item->pattern, from, to);
}

void hc_run_item(hc_item *item, int64_t begin, int64_t end) {
    switch (item->run) {
    case HC_RUN_LAUNCH: item->launchable->program->entry(item->args, item->grid, begin, end); break;
    case HC_RUN_COPY: case HC_RUN_FILL: run_transfer(item, begin, end); break;
    case HC_RUN_CALL: hc_call_run(item->op->call, begin, end); break;
    }
}

hc_program *hc_program_new(hc_device *dev, void *entry, int name) {
    hc_program *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    hc_object_init(&p->object, HC_PROGRAM, dev);
    p->entry = (hc_entry)entry;
    p->name = name;
    return p;
}

static int add_argument(hc_device *dev, hc_launchable *l, hc_arg arg) {
    uint64_t bits = arg.bits;
    if (arg.buffer) {
        int error = hc_check(dev, arg.buffer);
        if (error) return error;
        hc_ref(arg.buffer);
        l->buffers[l->nbuffers++] = arg.buffer;
        bits = (uint64_t)(uintptr_t)arg.buffer->data + arg.bits;
    }
    l->args[l->nargs++] = bits;
    return 0;
}

int hc_bind(hc_device *dev, hc_program *program, int nargs, hc_arg *args, hc_launchable **out) {
    int error = hc_usable(dev);
    if (!error) error = hc_check(dev, program);
    if (error) return error;
    hc_launchable *l = calloc(1, sizeof *l);
    if (!l) return HC_NO_MEMORY;
    hc_object_init(&l->object, HC_LAUNCHABLE, dev);
    hc_ref(program);
    l->program = program;
    l->args = calloc(nargs + 1, sizeof *l->args);
    l->buffers = calloc(nargs + 1, sizeof *l->buffers);
    if (!l->args || !l->buffers) error = HC_NO_MEMORY;
    for (int i = 0; i < nargs && !error; i++) error = add_argument(dev, l, args[i]);
    if (error) hc_unref(l);
    else *out = l;
    return error;
}

static int use_launchable(hc_device *dev, hc_op *op, hc_launchable *l) {
    int error = hc_op_use(dev, op, l);
    if (!error) error = hc_op_use(dev, op, l->program);
    for (int i = 0; i < l->nbuffers && !error; i++) error = hc_op_use(dev, op, l->buffers[i]);
    return error;
}

int hc_grid_fits(uint32_t x, uint32_t y, uint32_t z) { return x < 1u << 31 && y < 1u << 16 && z < 1u << 16; }

int64_t hc_launch(hc_device *dev, hc_launchable *l, uint32_t x, uint32_t y, uint32_t z, hc_timeline *timeline,
                  int nwaits, hc_point *waits, int64_t fault) {
    if (atomic_load(&dev->forked)) return HC_FORKED;
    if (!hc_grid_fits(x, y, z)) return HC_INVALID;
    hc_op *op = hc_op_new(HC_OP_ITEM, nwaits, l->nbuffers + 2, 0);
    if (!op) return HC_NO_MEMORY;
    int error = use_launchable(dev, op, l);
    if (error) {
        hc_op_discard(op);
        return error;
    }
    hc_item *item = &op->item;
    item->run = HC_RUN_LAUNCH;
    item->name = l->program->name;
    item->launchable = l;
    item->args = l->args;
    item->grid[0] = x, item->grid[1] = y, item->grid[2] = z;
    item->total = item->grid[0] * item->grid[1] * item->grid[2];
    return hc_submit(dev, op, timeline, nwaits, waits, fault);
}

static int use_region(hc_device *dev, hc_op *op, hc_buffer *b) {
    int error = hc_acquire_region(dev, b);
    if (!error) op->objects[op->nobjects++] = &b->object;
    return error;
}

int64_t hc_copy(hc_device *dev, hc_buffer *dst, int64_t dst_offset, void *dst_host, hc_buffer *src,
                int64_t src_offset, const void *src_host, int64_t nbytes, hc_timeline *timeline, int nwaits,
                hc_point *waits, int64_t fault) {
    if (atomic_load(&dev->forked)) return HC_FORKED;
    hc_op *op = hc_op_new(HC_OP_ITEM, nwaits, 2, 0);
    if (!op) return HC_NO_MEMORY;
    int error = dst ? use_region(dev, op, dst) : 0;
    if (!error && src) error = use_region(dev, op, src);
    if (error) {
        hc_op_discard(op);
        return error;
    }
    hc_item *item = &op->item;
    item->run = HC_RUN_COPY;
    item->name = -1;
    item->dst = dst ? dst->data + dst_offset : dst_host;
    item->src = src ? src->data + src_offset : src_host;
    item->nbytes = nbytes;
    item->total = hc_pieces(nbytes);
    return hc_submit(dev, op, timeline, nwaits, waits, fault);
}

int64_t hc_fill(hc_device *dev, hc_buffer *dst, int64_t offset, int64_t nbytes, uint64_t pattern,
                int pattern_nbytes, hc_timeline *timeline, int nwaits, hc_point *waits, int64_t fault) {
    if (atomic_load(&dev->forked)) return HC_FORKED;
    hc_op *op = hc_op_new(HC_OP_ITEM, nwaits, 1, 0);
    if (!op) return HC_NO_MEMORY;
    int error = hc_op_use(dev, op, dst);
    if (error) {
        hc_op_discard(op);
        return error;
    }
    hc_item *item = &op->item;
    item->run = HC_RUN_FILL;
    item->name = -2;
    item->dst = dst->data + offset;
    item->nbytes = nbytes;
    item->pattern = hc_widen(pattern, pattern_nbytes);
    item->total = hc_pieces(nbytes);
    return hc_submit(dev, op, timeline, nwaits, waits, fault);
}
