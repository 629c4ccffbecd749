// The kernels compiled for AVX-512 (F, VL, DQ, BW).
#define LOCKSTEP_SIMD_WIDTH 16
#define LOCKSTEP_SIMD_NAMESPACE avx512

#include "lockstep/ops/cpu/conv/depthwise_kernels.h"
#include "lockstep/ops/cpu/conv/winograd_gradient.h"
