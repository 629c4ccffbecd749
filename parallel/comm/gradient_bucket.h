// The gradients that communication hooks reduce over the ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// A range of parameters whose gradients backward has finished and which are to be reduced over the ranks.
/// torch.distributed.GradBucket.
class GradientBucket {
public:
    /// A parameter, or a piece of one that is too large for a bucket.
    struct Part {
        std::string name;                 ///< name of the parameter
        bool whole = true;                ///< false: a piece of the parameter
        Shape shape;                      ///< shape of the parameter; a piece has one dimension
        std::int64_t begin = 0, end = 0;  ///< elements of the buffer
    };

    GradientBucket(int index, bool last, Tensor buffer, std::vector<Part> parts)
        : index_(index), last_(last), buffer_(std::move(buffer)), parts_(std::move(parts)) {}

    /// Index from 0, in the order of backward; the same on all ranks.
    int index() const { return index_; }
    bool is_last() const { return last_; }
    /// This rank's sum over all its shards, on the host, flat; a copy that the hook may write. `step` and `backward`
    /// have already weighted the gradients. Only in the manual step must the sum be divided by the number of ranks,
    /// which DistributedDataParallel does after the hook.
    const Tensor& buffer() const { return buffer_; }
    const std::vector<Part>& parts() const { return parts_; }
    /// Views of the buffer, one per part, in its shape.
    std::vector<Tensor> gradients() const;
    /// The same bucket with another buffer, for example of another dtype.
    GradientBucket with(Tensor buffer) const { return {index_, last_, std::move(buffer), parts_}; }

private:
    int index_;
    bool last_;
    Tensor buffer_;
    std::vector<Part> parts_;
};

/// Replacement for an engine's own gradient reduction.
struct ReductionHook {
    std::function<Tensor(const GradientBucket&)> sum;
    std::function<void(const std::string& reason)> abort;  ///< ends the operations that `sum` waits for, on all ranks
};

inline std::vector<Tensor> GradientBucket::gradients() const {
    std::vector<Tensor> views;
    for (const Part& part : parts_) views.push_back(buffer_.slice(0, part.begin, part.end).reshape(part.shape));
    return views;
}

}  // namespace lockstep
