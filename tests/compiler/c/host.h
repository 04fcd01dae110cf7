/* OpenCL C as C of the host: a work-group's items are fibers, which take turns between barriers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

typedef unsigned char uchar;
#define ushort unsigned short
#define uint unsigned int
#define ulong unsigned long
#define __kernel static
#define __global
#define __local
#define CLK_LOCAL_MEM_FENCE 1
#define CLK_GLOBAL_MEM_FENCE 2

#define MOST_LANES 256
#define STACK_NBYTES (128 << 10)

static ucontext_t host, fibers[MOST_LANES];
static char *stacks;
static int current, ended[MOST_LANES];
static long group_id[3], group_count[3];
static void (*body)(void **);
static void **arguments;

#define get_local_id(axis) current
#define get_group_id(axis) group_id[axis]
#define get_num_groups(axis) group_count[axis]
#define get_global_id(axis) group_id[axis]
#define get_global_size(axis) group_count[axis]

static void barrier(int memories) { swapcontext(&fibers[current], &host); }

static void begin(void) {
    body(arguments);
    ended[current] = 1;
    swapcontext(&fibers[current], &host);
}

/* All items up to the next barrier; the number of those that came to their end. */
static int advance(int lanes, int backward) {
    int over = 0;
    for (int i = 0; i < lanes; i++) {
        current = backward ? lanes - 1 - i : i;
        swapcontext(&host, &fibers[current]);
        over += ended[current];
    }
    return over;
}

/* 0, or 1 when some items came to a barrier and others to their end. */
static int run_group(int lanes, int backward) {
    for (current = 0; current < lanes; current++) {
        getcontext(&fibers[current]);
        fibers[current].uc_stack.ss_sp = stacks + (size_t)current * STACK_NBYTES;
        fibers[current].uc_stack.ss_size = STACK_NBYTES;
        makecontext(&fibers[current], begin, 0);
        ended[current] = 0;
    }
    int over = 0;
    while (!over) over = advance(lanes, backward);
    return over != lanes;
}

/* 0, or 1 when the items of a group came apart. Names here are not those of a kernel's variables. */
static int run_groups(
    void (*kernel)(void **), void **given, const long *grid, int lanes, int backward) {
    int apart = 0;
    body = kernel, arguments = given;
    stacks = malloc((size_t)lanes * STACK_NBYTES);
    memcpy(group_count, grid, sizeof group_count);
    for (group_id[2] = 0; group_id[2] < grid[2]; group_id[2]++)
        for (group_id[1] = 0; group_id[1] < grid[1]; group_id[1]++)
            for (group_id[0] = 0; group_id[0] < grid[0]; group_id[0]++)
                apart |= run_group(lanes, backward);
    free(stacks);
    return apart;
}

#define AS(type, value) ({ __typeof__(value) from = (value); type to; memcpy(&to, &from, sizeof to); to; })
#define as_float(value) AS(float, value)
#define as_double(value) AS(double, value)
#define as_int(value) AS(int, value)
#define as_uint(value) AS(uint, value)
#define as_long(value) AS(long, value)
#define as_ulong(value) AS(ulong, value)
#define rsqrt(value) (1 / sqrt(value))
/* In float where both operands are. */
#define FLOAT2(name, a, b) (sizeof((a) + (b)) == 4 ? name##f(a, b) : name(a, b))
#define fmod(a, b) FLOAT2(fmod, a, b)
#define fma(a, b, c) (sizeof((a) + (b)) == 4 ? fmaf(a, b, c) : (fma)(a, b, c))

/* Vectors of `type`, which may lie anywhere in memory. */
#define VECTOR(type, width) \
    typedef type type##width __attribute__((vector_size(width * sizeof(type)), aligned(sizeof(type)))); \
    static inline type##width splat_##type##width(type x) { return x - (type##width){0}; }
#define LOAD(width, p) \
    ({ typedef __typeof__((0, *(p))) kind; \
       typedef kind many __attribute__((vector_size(width * sizeof(kind)), aligned(sizeof(kind)))); \
       *(const many *)(p); })
#define STORE(x, p) ({ __typeof__(x) whole = (x); memcpy((p), &whole, sizeof whole); })
#define vload2(offset, p) LOAD(2, p)
#define vload4(offset, p) LOAD(4, p)
#define vload8(offset, p) LOAD(8, p)
#define vload16(offset, p) LOAD(16, p)
#define vstore2(x, offset, p) STORE(x, p)
#define vstore4(x, offset, p) STORE(x, p)
#define vstore8(x, offset, p) STORE(x, p)
#define vstore16(x, offset, p) STORE(x, p)
