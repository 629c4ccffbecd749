// The kernels compiled for AVX-512 (F, VL, DQ, BW).
#define LOCKSTEP_SIMD_WIDTH 16
#define LOCKSTEP_SIMD_NAMESPACE avx512

#include "lockstep/ops/cpu/first_layer_kernels.h"
#include "lockstep/ops/cpu/winograd_gradient.h"
