// Sums over everything but the channels: gradients of biases.
#pragma once

#include "lockstep/ops/cuda/reduce.h"

namespace lockstep::cuda {

/// A dense tensor (outer, channels, inner).
struct ChannelLayout {
    std::int64_t outer = 0, channels = 0, inner = 1;
};
/// Scratch that `channel_sums` needs.
std::size_t channel_sums_scratch(const ChannelLayout& layout);
/// Enqueues sums (channels) = x summed over outer and inner; of any floating dtype.
void channel_sums(const Queue& queue, DType dtype, const ChannelLayout& layout, const void* x, void* sums,
                  void* scratch);

}  // namespace lockstep::cuda
