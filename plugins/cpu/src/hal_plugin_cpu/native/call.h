#ifndef HAL_CPU_CALL_H
#define HAL_CPU_CALL_H

#include "runtime.h"

enum { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BARRIER };
enum { SUM, PROD, MIN, MAX, AVG };
enum { F64, F32, F16, BF16, I64, I32, I16, I8, U64, U32, U16, U8, BOOL };

typedef struct {
    hc_device *dev;
    hc_op *op; /* while it has arrived and not left */
    unsigned char *dst;
    const unsigned char *src;
    int64_t failure;
    _Atomic int64_t arrived_ns;
    atomic_int done;
} hc_member;

struct hc_call {
    atomic_int refs;
    pthread_mutex_t lock;
    int size, arrived, executing, kind, dtype, reduce, root;
    int64_t count;
    hc_member members[];
};

int64_t hc_call_pieces(const hc_call *call);
/* convert.c */
void hc_f16_to_f32(float *dst, const uint16_t *src, int64_t n);
void hc_f32_to_f16(uint16_t *dst, const float *src, int64_t n);
void hc_bf16_to_f32(float *dst, const uint16_t *src, int64_t n);
void hc_f32_to_bf16(uint16_t *dst, const float *src, int64_t n);
uint16_t hc_half_from_double(double x);

#endif
