/* The host side of athread, for the emulator. A slave function is named without its prefix slave_. */
#ifndef EMU_ATHREAD_H
#define EMU_ATHREAD_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "emu_api.h"

#define SLAVE_FUN(name) slave_##name
#define CRTS_MAX_SPE_NUM 64

#define CRTS_init() athread_init()
static inline int athread_init(void) { return 0; }
static inline int athread_halt(void) { return 0; }
static inline int athread_get_max_threads(void) { return CRTS_MAX_SPE_NUM; }

#define athread_spawn(name, argument) emu_spawn(__LINE__, #name, (void *)(argument))
#define athread_join() emu_join(__LINE__)
#define CRTS_athread_spawn athread_spawn
#define CRTS_athread_join athread_join
#define athread_time_cycle() emu_mpe_cycles()
#define CRTS_time_cycle() emu_mpe_cycles()

#endif
