/* The runtime's own names; slave.h has them too. */
#ifndef EMU_CRTS_H
#define EMU_CRTS_H
#ifdef __sw_host__
#include "athread.h"
#else
#include "slave.h"
#endif
#endif
