// Launches of kernels that nvcc compiled, for test_launches.cpp.
#pragma once

#include <cuda_runtime_api.h>

/// An element-wise kernel.
void launch_elements(cudaStream_t stream);
/// Kernels that sum up: `elements` each for `outputs` sums, which lie side by side in memory where `across`.
void launch_sums(cudaStream_t stream, long outputs, long elements, bool across);
