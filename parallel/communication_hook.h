// Communication hooks, which replace the gradient all-reduce of DistributedDataParallel.
// torch.distributed.algorithms.ddp_comm_hooks.
#pragma once

#include <cstdint>
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

// PowerSGD: a communication hook that sends matrices as products of two thin ones.

/// Options of power_sgd_hook.
struct PowerSgdOptions {
    int rank = 1;                ///< columns of the thin matrices; more columns reduce the error
    int start_iteration = 1000;  ///< number of initial backwards with the plain all-reduce
    /// Minimum factor by which compression must reduce the elements of a matrix; otherwise it is sent whole.
    double min_compression_rate = 2;
    bool use_error_feedback = true;  ///< whether the compression error is added to the next gradients
    bool warm_start = true;          ///< whether to start from the last backward's matrix instead of a random one
    std::uint64_t seed = 0;          ///< random seed for the initial matrices
};

/// Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization" (NeurIPS 2019);
/// torch's powerSGD_hook. A gradient of shape (n, ...) is a matrix of n rows, which one step of power iteration
/// approximates by P Q^T. Vectors and small matrices are sent whole. If a parameter is cut over several buckets, each
/// piece is compressed as the squarest matrix. A hook stores the compression error, so each model needs its own hook.
/// Throws InvalidArgument for a rank below 1 and a rate that is not positive. With error feedback or warm start it also
/// throws for a start before iteration 2, because the first backwards lose the most.
CommunicationHook power_sgd_hook(const PowerSgdOptions& options = {});

}  // namespace lockstep
