// How the values of a tensor are distributed, for logs.
#pragma once

#include <cstdint>

#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// What `histogram` found, where x lies: reading it waits for it.
struct HistogramCounts {
    Tensor counts;   ///< (bins) i64
    Tensor summary;  ///< (7) f64, see read_summary

    /// Of finite elements, and how many there are of each kind. Minimum and maximum of none are 0.
    struct Summary {
        std::int64_t finite, nan, infinite;
        double min, max, sum, sum_squares;
    };
    /// Waits for the values.
    Summary read_summary() const;
};

/// How many elements of x (any shape, floating) lie in each bin: [edge, next edge), the last bin with its upper edge.
/// edges: (bins + 1) f64, ascending, at least two; infinite ones are allowed. NaN and what lies outside is in no bin.
/// torch.histogram with its `bins` as a tensor. Not differentiable; the same in every run.
HistogramCounts histogram(const Tensor& x, const Tensor& edges);

}  // namespace lockstep
