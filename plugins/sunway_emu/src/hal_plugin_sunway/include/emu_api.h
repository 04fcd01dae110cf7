/* What a compiled slave-core program and the emulator share. Programs include slave.h instead. */
#ifndef EMU_API_H
#define EMU_API_H

enum { EMU_SINGLE, EMU_ROW, EMU_COL, EMU_ARRAY };
enum { EMU_PUT, EMU_GET };

/* Work that a CPE has done since its clock was last brought up to date: floating-point operations by
 * width, integer operations, and bytes moved between LDM and registers. */
struct emu_mix {
    double fp64, fp32, fp16, integer, ldm;
};

struct emu_self {
    int pen, row, col, cgn;
    struct emu_mix mix;
};

extern struct emu_self *emu_self; /* the CPE that runs now */

/* A null reply: the call returns when the transfer is complete. */
int emu_dma(int line, int op, int mode, void *ldm, const void *main, long len, long bsize, long stride,
            volatile int *reply);
int emu_dma_coll(int line, int mode, void *ldm, const void *main, long len, long bsize, long stride);
int emu_dma_barrier(int line);
int emu_rma(int line, int op, int target, void *local, void *remote, long len, volatile int *l_reply,
            volatile int *r_reply);
int emu_rma_bcast(int line, int mode, unsigned mask, int self, void *dst, void *src, long len,
                  volatile int *l_reply, volatile int *r_reply);
int emu_rma_bcast_coll(int line, int mode, void *dst, void *src, long len, int root);
int emu_wait_value(int line, volatile int *reply, int value);
int emu_sync(int line, int mode, unsigned mask);
unsigned long emu_cycles(void);
void *emu_ldm_malloc(int line, long nbytes);
void emu_ldm_free(int line, void *block);
void emu_mark(const char *name);

int emu_spawn(int line, const char *name, void *argument);
int emu_join(int line);
unsigned long emu_mpe_cycles(void);

#endif
