// Communication hooks: what brings the ranks' gradients together in place of DistributedDataParallel's own reduction.
// torch.distributed.algorithms.ddp_comm_hooks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// What a rank has to bring together with the others: the gradients of some parameters, which backward has finished.
/// torch.distributed.GradBucket.
class GradientBucket {
public:
    /// A parameter, or a piece of one that is too large for a bucket.
    struct Part {
        std::string name;                 ///< of the parameter
        bool whole = true;                ///< false: a piece
        Shape shape;                      ///< of the parameter; a piece has one dimension
        std::int64_t begin = 0, end = 0;  ///< elements of the buffer
    };

    GradientBucket(int index, bool last, Tensor buffer, std::vector<Part> parts)
        : index_(index), last_(last), buffer_(std::move(buffer)), parts_(std::move(parts)) {}

    /// From 0, in the order of backward; the same on all ranks.
    int index() const { return index_; }
    bool is_last() const { return last_; }
    /// This rank's sum over all its shards, on the host, flat; a copy that the hook may write. Sums are of what `step`
    /// or `backward` weighted already: nothing is left to be divided by but, in the longer form, the number of ranks,
    /// and DistributedDataParallel does that behind the hook.
    const Tensor& buffer() const { return buffer_; }
    const std::vector<Part>& parts() const { return parts_; }
    /// Views of the buffer, one a part, in its shape.
    std::vector<Tensor> gradients() const;
    /// The same bucket with other numbers: of another dtype, for one.
    GradientBucket with(Tensor buffer) const { return {index_, last_, std::move(buffer), parts_}; }

private:
    int index_;
    bool last_;
    Tensor buffer_;
    std::vector<Part> parts_;
};

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
