// Copies between layouts that other kernels need inside of their own work.
#pragma once

#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/internal/activation.h"

namespace lockstep::cuda {

/// Enqueues to = from for float tensors of sizes `shape`, each with its own strides.
void copy_strided(const Queue& queue, const char* name, const Shape& shape, float* to, const Shape& to_strides,
                  const float* from, const Shape& from_strides);
/// Enqueues y = activation(y + bias) for `elements` dense elements (outer, channels, inner); bias (channels) or null.
void add_bias(const Queue& queue, float* y, const float* bias, Activation activation, std::int64_t elements,
              std::int64_t channels, std::int64_t inner);

}  // namespace lockstep::cuda
