/* The slave-core side of athread, for the emulator: names and arguments as on the new Sunway. */
#ifndef EMU_SLAVE_H
#define EMU_SLAVE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "emu_api.h"
#include "simd.h"

#define __thread_local __thread
#define __thread_kernel(name)
#define __ldm __thread
#define __uncached
#define __cross

typedef volatile int athread_rply_t;
typedef volatile int crts_rply_t;

#define CRTS_MAX_LDM_SIZE (256 << 10)

#define _PEN (emu_self->pen)
#define _MYID (emu_self->pen)
#define _ROW (emu_self->row)
#define _COL (emu_self->col)
#define _CGN (emu_self->cgn)
#define CRTS_tid _PEN
#define CRTS_rid _ROW
#define CRTS_cid _COL
#define CRTS_cgn _CGN
#define athread_tid _PEN
#define athread_get_id(id) _PEN

/* DMA. A stride is the gap in main memory between the end of a block and the next block. */
#define CRTS_dma_get(dst, src, len) emu_dma(__LINE__, EMU_GET, EMU_SINGLE, dst, src, len, 0, 0, 0)
#define CRTS_dma_put(dst, src, len) emu_dma(__LINE__, EMU_PUT, EMU_SINGLE, src, dst, len, 0, 0, 0)
#define CRTS_dma_iget(dst, src, len, reply)                                                         \
    emu_dma(__LINE__, EMU_GET, EMU_SINGLE, dst, src, len, 0, 0, EMU_REPLY(reply))
#define CRTS_dma_iput(dst, src, len, reply)                                                         \
    emu_dma(__LINE__, EMU_PUT, EMU_SINGLE, src, dst, len, 0, 0, EMU_REPLY(reply))
#define CRTS_dma_get_stride(dst, src, len, bsize, stride)                                           \
    emu_dma(__LINE__, EMU_GET, EMU_SINGLE, dst, src, len, bsize, stride, 0)
#define CRTS_dma_put_stride(dst, src, len, bsize, stride)                                           \
    emu_dma(__LINE__, EMU_PUT, EMU_SINGLE, src, dst, len, bsize, stride, 0)
#define CRTS_dma_iget_stride(dst, src, len, bsize, stride, reply)                                   \
    emu_dma(__LINE__, EMU_GET, EMU_SINGLE, dst, src, len, bsize, stride, EMU_REPLY(reply))
#define CRTS_dma_iput_stride(dst, src, len, bsize, stride, reply)                                   \
    emu_dma(__LINE__, EMU_PUT, EMU_SINGLE, src, dst, len, bsize, stride, EMU_REPLY(reply))
#define CRTS_dma_row_ibcast(dst, src, len, reply)                                                   \
    emu_dma(__LINE__, EMU_GET, EMU_ROW, dst, src, len, 0, 0, EMU_REPLY(reply))
#define CRTS_dma_col_ibcast(dst, src, len, reply)                                                   \
    emu_dma(__LINE__, EMU_GET, EMU_COL, dst, src, len, 0, 0, EMU_REPLY(reply))
#define CRTS_dma_ibcast(dst, src, len, reply)                                                       \
    emu_dma(__LINE__, EMU_GET, EMU_ARRAY, dst, src, len, 0, 0, EMU_REPLY(reply))
#define CRTS_dma_row_ibcast_stride(dst, src, len, bsize, stride, reply)                             \
    emu_dma(__LINE__, EMU_GET, EMU_ROW, dst, src, len, bsize, stride, EMU_REPLY(reply))
#define CRTS_dma_col_ibcast_stride(dst, src, len, bsize, stride, reply)                             \
    emu_dma(__LINE__, EMU_GET, EMU_COL, dst, src, len, bsize, stride, EMU_REPLY(reply))
#define CRTS_dma_ibcast_stride(dst, src, len, bsize, stride, reply)                                 \
    emu_dma(__LINE__, EMU_GET, EMU_ARRAY, dst, src, len, bsize, stride, EMU_REPLY(reply))
#define CRTS_dma_row_bcast_coll(dst, src, len) emu_dma_coll(__LINE__, EMU_ROW, dst, src, len, 0, 0)
#define CRTS_dma_col_bcast_coll(dst, src, len) emu_dma_coll(__LINE__, EMU_COL, dst, src, len, 0, 0)
#define CRTS_dma_bcast_coll(dst, src, len) emu_dma_coll(__LINE__, EMU_ARRAY, dst, src, len, 0, 0)
#define CRTS_dma_row_bcast_stride_coll(dst, src, len, bsize, stride)                                \
    emu_dma_coll(__LINE__, EMU_ROW, dst, src, len, bsize, stride)
#define CRTS_dma_col_bcast_stride_coll(dst, src, len, bsize, stride)                                \
    emu_dma_coll(__LINE__, EMU_COL, dst, src, len, bsize, stride)
#define CRTS_dma_bcast_stride_coll(dst, src, len, bsize, stride)                                    \
    emu_dma_coll(__LINE__, EMU_ARRAY, dst, src, len, bsize, stride)
#define CRTS_dma_wait_value(reply, value) emu_wait_value(__LINE__, EMU_REPLY(reply), value)
#define CRTS_dma_barrier() emu_dma_barrier(__LINE__)
#define CRTS_dma_all_barrier() emu_dma_barrier(__LINE__)
#define EMU_REPLY(reply) ((volatile int *)(reply))

/* RMA inside a core group. */
#define CRTS_rma_put(l_addr, len, r_tid, r_addr, r_rply)                                            \
    emu_rma(__LINE__, EMU_PUT, r_tid, l_addr, r_addr, len, 0, EMU_REPLY(r_rply))
#define CRTS_rma_get(l_addr, len, r_tid, r_addr, r_rply)                                            \
    emu_rma(__LINE__, EMU_GET, r_tid, l_addr, r_addr, len, 0, EMU_REPLY(r_rply))
#define CRTS_rma_iput(l_addr, l_rply, len, r_tid, r_addr, r_rply)                                   \
    emu_rma(__LINE__, EMU_PUT, r_tid, l_addr, r_addr, len, EMU_REPLY(l_rply), EMU_REPLY(r_rply))
#define CRTS_rma_iget(l_addr, l_rply, len, r_tid, r_addr, r_rply)                                   \
    emu_rma(__LINE__, EMU_GET, r_tid, l_addr, r_addr, len, EMU_REPLY(l_rply), EMU_REPLY(r_rply))
#define EMU_BCAST(mode, mask, self, dst, src, len, l_rply, r_rply)                                  \
    emu_rma_bcast(__LINE__, mode, mask, self, dst, src, len, EMU_REPLY(l_rply), EMU_REPLY(r_rply))
#define CRTS_rma_row_bcast(dst, src, len, r_rply)                                                   \
    EMU_BCAST(EMU_ROW, 1u << _ROW, 1, dst, src, len, 0, r_rply)
#define CRTS_rma_col_bcast(dst, src, len, r_rply)                                                   \
    EMU_BCAST(EMU_COL, 1u << _COL, 1, dst, src, len, 0, r_rply)
#define CRTS_rma_bcast(dst, src, len, r_rply) EMU_BCAST(EMU_COL, 0xff, 1, dst, src, len, 0, r_rply)
#define CRTS_rma_row_ibcast(dst, src, len, l_rply, r_rply)                                          \
    EMU_BCAST(EMU_ROW, 1u << _ROW, 1, dst, src, len, l_rply, r_rply)
#define CRTS_rma_col_ibcast(dst, src, len, l_rply, r_rply)                                          \
    EMU_BCAST(EMU_COL, 1u << _COL, 1, dst, src, len, l_rply, r_rply)
#define CRTS_rma_ibcast(dst, src, l_rply, len, r_rply)                                              \
    EMU_BCAST(EMU_COL, 0xff, 1, dst, src, len, l_rply, r_rply)
#define CRTS_rma_row_mcast(dst, src, len, mask, r_rply)                                             \
    EMU_BCAST(EMU_ROW, mask, 1, dst, src, len, 0, r_rply)
#define CRTS_rma_col_mcast(dst, src, len, mask, r_rply)                                             \
    EMU_BCAST(EMU_COL, mask, 1, dst, src, len, 0, r_rply)
#define CRTS_rma_row_imcast(dst, src, len, l_rply, mask, r_rply)                                    \
    EMU_BCAST(EMU_ROW, mask, 1, dst, src, len, l_rply, r_rply)
#define CRTS_rma_col_imcast(dst, src, len, l_rply, mask, r_rply)                                    \
    EMU_BCAST(EMU_COL, mask, 1, dst, src, len, l_rply, r_rply)
#define CRTS_rma_row_ibcast_other(dst, src, len, l_rply, r_rply)                                    \
    EMU_BCAST(EMU_ROW, 1u << _ROW, 0, dst, src, len, l_rply, r_rply)
#define CRTS_rma_col_ibcast_other(dst, src, len, l_rply, r_rply)                                    \
    EMU_BCAST(EMU_COL, 1u << _COL, 0, dst, src, len, l_rply, r_rply)
#define CRTS_rma_bcast_coll(dst, src, len, root)                                                    \
    emu_rma_bcast_coll(__LINE__, EMU_ARRAY, dst, src, len, root)
#define CRTS_rma_row_bcast_coll(dst, src, len, root)                                                \
    emu_rma_bcast_coll(__LINE__, EMU_ROW, dst, src, len, root)
#define CRTS_rma_col_bcast_coll(dst, src, len, root)                                                \
    emu_rma_bcast_coll(__LINE__, EMU_COL, dst, src, len, root)
#define CRTS_rma_wait_value(reply, value) emu_wait_value(__LINE__, EMU_REPLY(reply), value)

/* Synchronisation. */
#define ROW_SCOPE EMU_ROW
#define COL_SCOPE EMU_COL
#define ARRAY_SCOPE EMU_ARRAY
#define CRTS_ssync_array() emu_sync(__LINE__, EMU_ARRAY, 0xff)
#define CRTS_ssync_row() emu_sync(__LINE__, EMU_ROW, 0xff)
#define CRTS_ssync_col() emu_sync(__LINE__, EMU_COL, 0xff)
#define CRTS_ssync_node() emu_sync(__LINE__, EMU_ARRAY, 0xff)
#define athread_ssync(scope, mask) emu_sync(__LINE__, scope, mask)
#define athread_syn(scope, mask) emu_sync(__LINE__, scope, mask)

/* Time and memory. */
#define CRTS_stime_cycle() emu_cycles()
#define CRTS_time_cycle() emu_cycles()
#define athread_stime_cycle() emu_cycles()
#define athread_time_cycle() emu_cycles()
#define ldm_malloc(nbytes) emu_ldm_malloc(__LINE__, nbytes)
#define ldm_free(block, nbytes) emu_ldm_free(__LINE__, block)
#define CRTS_pldm_malloc(nbytes) emu_ldm_malloc(__LINE__, nbytes)
#define CRTS_pldm_free(block, nbytes) emu_ldm_free(__LINE__, block)

/* What the emulator alone has: work that the program does in plain C, so that the clock knows it, and
 * names for the timeline. Elsewhere these are nothing: #ifndef athread_work_f64, define them so. An access to main
 * memory that is no DMA takes about as long as the smallest DMA. */
#define athread_work_f64(flops) ((void)(emu_self->mix.fp64 += (flops)))
#define athread_work_f32(flops) ((void)(emu_self->mix.fp32 += (flops)))
#define athread_work_f16(flops) ((void)(emu_self->mix.fp16 += (flops)))
#define athread_work_int(ops) ((void)(emu_self->mix.integer += (ops)))
#define athread_work_ldm(nbytes) ((void)(emu_self->mix.ldm += (nbytes)))
#define athread_work_direct(accesses) athread_work_int(250 * (accesses))
#define athread_mark(name) emu_mark(name)

/* The bytes of a vector of the machine that emulates. */
#ifdef __AVX__
#define HAL_VECTOR 32
#else
#define HAL_VECTOR 16
#endif

#include "crts2ath.h"

#endif
