// The plain loops compiled for AVX-512 (F, VL, DQ, BW).
#define LOCKSTEP_LOOPS loops_avx512

#include "lockstep/ops/cpu/loops_kernels.h"
