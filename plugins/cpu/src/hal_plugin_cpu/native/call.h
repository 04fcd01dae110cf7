#ifndef HAL_CPU_CALL_H
#define HAL_CPU_CALL_H

#include "runtime.h"

enum {
    ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, ALL_TO_ALL_V, GATHER, SCATTER, BARRIER
};
enum { SUM, PROD, MIN, MAX, AVG };
enum { F64, F32, F16, BF16, I64, I32, I16, I8, U64, U32, U16, U8, BOOL, F8E4M3FN, F8E5M2 };

#define HC_BLOCK 1024 /* elements kept in the first-level cache */

typedef struct {
    int size, kind, dtype, reduce, root;
    int64_t count;
} hc_shape;

typedef struct {
    hc_device *dev;
    hc_op *op; /* while it has arrived and not left */
    unsigned char *dst;
    const unsigned char *src;
    unsigned char *scratch; /* a copy of `src` for an ALL_TO_ALL_V whose `dst` would overwrite it, or NULL */
    int64_t failure;
    _Atomic int64_t arrived_ns;
    atomic_int stage; /* enum hc_stage */
    atomic_int done;
} hc_member;

struct hc_call {
    atomic_int refs;
    pthread_mutex_t lock;
    int arrived, executing;
    hc_shape shape;
    int64_t *counts; /* of ALL_TO_ALL_V: row i is what rank i sends; else NULL */
    hc_member members[];
};

/* reduce.c */
int hc_nbytes_of(int dtype);
void hc_reduce_block(const hc_shape *shape, const unsigned char *const *srcs, int64_t n, unsigned char *out);
/* move.c */
int64_t hc_call_pieces(const hc_call *c);
int64_t hc_sent_before(const hc_shape *shape, const int64_t *counts, int from, int to);
/* convert.c */
void hc_f16_to_f32(float *dst, const uint16_t *src, int64_t n);
void hc_f32_to_f16(uint16_t *dst, const float *src, int64_t n);
void hc_bf16_to_f32(float *dst, const uint16_t *src, int64_t n);
void hc_f32_to_bf16(uint16_t *dst, const float *src, int64_t n);
void hc_f8_to_f32(int dtype, float *dst, const uint8_t *src, int64_t n);
void hc_f32_to_f8(int dtype, uint8_t *dst, const float *src, int64_t n);
uint16_t hc_half_from_double(double x);

#endif
