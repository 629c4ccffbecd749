// Copies between layouts within other kernels.
#pragma once

#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/internal/nn_operations.h"

namespace lockstep::cuda {

/// Enqueues to = from for tensors of sizes `shape` and of one dtype, with separate strides.
void copy_strided(const Queue& queue, const char* name, DType dtype, const Shape& shape, void* to,
                  const Shape& to_strides, const void* from, const Shape& from_strides);
/// Enqueues y = activation(y + bias) for `elements` dense elements (outer, channels, inner) of a floating dtype; bias
/// (channels) or null.
void add_bias(const Queue& queue, DType dtype, void* y, const void* bias, Activation activation, std::int64_t elements,
              std::int64_t channels, std::int64_t inner);

}  // namespace lockstep::cuda
