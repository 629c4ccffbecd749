// What communication hooks are given: gradients that the ranks have to bring together.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

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
    /// or `backward` weighted already: nothing is left to be divided by but, in the manual step, the number of ranks,
    /// and DistributedDataParallel does that after the hook.
    const Tensor& buffer() const { return buffer_; }
    const std::vector<Part>& parts() const { return parts_; }
    /// Views of the buffer, one per part, in its shape.
    std::vector<Tensor> gradients() const;
    /// The same bucket with other numbers: of another dtype, for one.
    GradientBucket with(Tensor buffer) const { return {index_, last_, std::move(buffer), parts_}; }

private:
    int index_;
    bool last_;
    Tensor buffer_;
    std::vector<Part> parts_;
};

/// What brings gradients together in place of an engine's own reduction.
struct ReductionHook {
    std::function<Tensor(const GradientBucket&)> sum;
    std::function<void(const std::string& reason)> abort;  ///< ends what `sum` waits for, on all ranks
};

}  // namespace lockstep
