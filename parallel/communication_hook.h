// Communication hooks: what brings the ranks' gradients together in place of DistributedDataParallel's own reduction.
// torch.distributed.algorithms.ddp_comm_hooks.
#pragma once

#include <functional>

#include "lockstep/parallel/comm/gradient_bucket.h"
#include "lockstep/parallel/comm/process_group.h"

namespace lockstep {

/// Called for every bucket of every backward that brings gradients together, in the same order on all ranks, on the
/// thread that communicates, so that it must not use the model or its devices. Returns the sum of the ranks' buffers,
/// or what shall count as it: a host tensor of the buffer's shape and dtype, the same on all ranks. `group` is the
/// hook's own. What it throws, or a result that does not fit, ends the training with CommunicationError on all ranks.
using CommunicationHook = std::function<Tensor(const GradientBucket& bucket, ProcessGroup& group)>;

/// The backend's own all-reduce.
CommunicationHook all_reduce_hook();
/// `hook` on buffers that were divided by the number of ranks and rounded to 16 bits: half the bytes. torch's
/// fp16_compress_wrapper and bf16_compress_wrapper.
CommunicationHook fp16_compress_wrapper(CommunicationHook hook);
CommunicationHook bf16_compress_wrapper(CommunicationHook hook);
/// All-reduce in 16 bits. torch's fp16_compress_hook and bf16_compress_hook.
CommunicationHook fp16_compress_hook();
CommunicationHook bf16_compress_hook();

}  // namespace lockstep
