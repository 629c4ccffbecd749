// A reduction over dimensions of a strided tensor.
#pragma once

#include <cstdint>
#include <limits>

#include "lockstep/ops/cuda/reduce.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep::cuda {

/// A tensor split into results and the elements of each result.
struct Split {
    Shape kept, reduced;                  // sizes
    Shape kept_strides, reduced_strides;  // strides of the input
    bool across = false;
};

inline Split split_dims(const TensorMeta& x, std::uint32_t dims) {
    Split split;
    for (int d = 0; d < x.shape.dims(); ++d) {
        const bool is_reduced = (dims >> d & 1u) != 0;
        (is_reduced ? split.reduced : split.kept).push_back(x.shape[d]);
        (is_reduced ? split.reduced_strides : split.kept_strides).push_back(x.strides[d]);
    }
    // Threads with adjacent numbers read along the dimension whose elements are nearest to each other.
    std::int64_t nearest = std::numeric_limits<std::int64_t>::max();
    for (int d = 0; d < x.shape.dims(); ++d)
        if (x.shape[d] > 1 && x.strides[d] != 0 && x.strides[d] <= nearest) {
            nearest = x.strides[d];
            split.across = (dims >> d & 1u) == 0;
        }
    return split;
}

inline ReducePlan plan_of(const Split& split) {
    return ReducePlan::make(split.kept.numel(), split.reduced.numel(), split.across);
}

}  // namespace lockstep::cuda
