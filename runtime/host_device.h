// Functions of a single element, shared by CPU loops and CUDA kernels.
#pragma once

#include "lockstep/runtime/language.h"

/// Marks a function of a single element. Such functions are always inlined, so that a source compiled for a newer
/// instruction set emits no copy that the linker could pick for older processors.
#if defined(__CUDACC__)
#define LOCKSTEP_HD_INLINE __host__ __device__ __forceinline__
#else
#define LOCKSTEP_HD_INLINE inline __attribute__((always_inline))
#endif
