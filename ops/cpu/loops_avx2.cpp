// The plain loops compiled for AVX2 with FMA and F16C.
#define LOCKSTEP_LOOPS loops_avx2

#include "lockstep/ops/cpu/loops_kernels.h"
