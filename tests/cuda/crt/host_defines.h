/* What the vendor's headers want of their compiler's: words that say nothing to a C compiler. */
#define __host__
#define __device__
#define __device_builtin__
#define __cudart_builtin__
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __align__(n) __attribute__((aligned(n)))
#define CUDARTAPI
