// Sums over everything but the channels: gradients of biases.
#pragma once

#include "lockstep/ops/cuda/channel_walk.h"
#include "lockstep/ops/cuda/reduce.h"

namespace lockstep::cuda {

/// Order in which the elements of channels are reduced.
ReducePlan channels_plan(const ChannelLayout& layout);
/// Size of the scratch for `channel_sums`.
std::size_t channel_sums_scratch(const ChannelLayout& layout);
/// Enqueues sums (channels) = x summed over outer and inner, for any floating dtype.
void channel_sums(const Queue& queue, DType dtype, const ChannelLayout& layout, const void* x, void* sums,
                  void* scratch);

}  // namespace lockstep::cuda
