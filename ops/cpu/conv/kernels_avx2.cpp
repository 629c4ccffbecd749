// The kernels compiled for AVX2 with FMA.
#define LOCKSTEP_SIMD_WIDTH 8
#define LOCKSTEP_SIMD_NAMESPACE avx2

#include "lockstep/ops/cpu/conv/depthwise_kernels.h"
#include "lockstep/ops/cpu/conv/first_layer_kernels.h"
#include "lockstep/ops/cpu/conv/winograd_gradient.h"
