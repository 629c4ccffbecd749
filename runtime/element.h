// Functions of a single element, shared by CPU loops and CUDA kernels.
#pragma once

/// Marks a function of a single element. Such functions are always inlined, so that a source compiled for a newer
/// instruction set emits no copy that the linker could pick for older processors.
#if defined(__CUDACC__)
#define LOCKSTEP_ELEMENT __host__ __device__ __forceinline__
#else
#define LOCKSTEP_ELEMENT inline __attribute__((always_inline))
#endif
