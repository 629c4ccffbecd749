// Launches of kernels compiled by nvcc, for test_launches.cpp.
#pragma once

#include <cuda_runtime_api.h>

/// An element-wise kernel.
void launch_elements(cudaStream_t stream);
/// Summing kernels: `elements` each for `outputs` sums, whose elements are interleaved in memory if `across`.
void launch_sums(cudaStream_t stream, long outputs, long elements, bool across);
