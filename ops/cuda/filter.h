// Conversion of convolution weights between the order of their arena, (K, C, taps), and cuDNN's for channels-last
// images, (K, taps, C).
#pragma once

#include "lockstep/ops/cuda/kernel.h"

namespace lockstep::cuda {

/// Weights of `filters` filters with `channels` channels and `taps` taps.
struct FilterShape {
    std::int64_t filters, channels, taps;

    static FilterShape of(const Shape& weights) { return {weights[0], weights[1], weights[2] * weights[3]}; }
};

/// Enqueues the conversion to cuDNN's order (`to_last`), or back.
void convert_filters(const Queue& queue, DType dtype, const FilterShape& shape, bool to_last, void* to,
                     const void* from);

/// Enqueues the conversion of f16 or bf16 to f32, in the order of the arena; from cuDNN's order if `from_last`.
void widen_filters(const Queue& queue, DType dtype, const FilterShape& shape, bool from_last, float* to,
                   const void* from);

}  // namespace lockstep::cuda
