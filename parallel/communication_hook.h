// Communication hooks, which replace the gradient all-reduce of DistributedDataParallel.
// torch.distributed.algorithms.ddp_comm_hooks.
#pragma once

#include <functional>

#include "lockstep/parallel/comm/gradient_bucket.h"
#include "lockstep/parallel/comm/process_group.h"

namespace lockstep {

/// Called for every bucket of every backward that synchronizes gradients, in the same order on all ranks. Runs on the
/// communication thread, so it must not use the model or its devices. Returns the sum of the ranks' buffers or an
/// approximation of it: a host tensor of the buffer's shape and dtype, equal on all ranks. `group` is reserved for the
/// hook. If the hook throws or returns a tensor of another shape or dtype, training ends with CommunicationError on all
/// ranks.
using CommunicationHook = std::function<Tensor(const GradientBucket& bucket, ProcessGroup& group)>;

/// The backend's own all-reduce.
CommunicationHook all_reduce_hook();
/// Calls `hook` with buffers divided by the number of ranks and rounded to 16 bits, which halves the bytes. torch's
/// fp16_compress_wrapper and bf16_compress_wrapper.
CommunicationHook fp16_compress_wrapper(CommunicationHook hook);
CommunicationHook bf16_compress_wrapper(CommunicationHook hook);
/// All-reduce in 16 bits. torch's fp16_compress_hook and bf16_compress_hook.
CommunicationHook fp16_compress_hook();
CommunicationHook bf16_compress_hook();

}  // namespace lockstep
