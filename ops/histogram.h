// Distribution of the values of a tensor, for logs.
#pragma once

#include <cstdint>

#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// Result of `histogram`, on the device of x: reading it waits for it.
struct HistogramCounts {
    Tensor counts;   ///< (bins) i64
    Tensor summary;  ///< (7) f64, see read_summary

    /// Counts by kind, and statistics of the finite elements; minimum and maximum are 0 without any.
    struct Summary {
        std::int64_t finite, nan, infinite;
        double min, max, sum, sum_squares;
    };
    /// Waits for the values.
    Summary read_summary() const;
};

/// Counts the elements of x (any shape, floating) in each bin: [edge, next edge), the last bin with its upper edge.
/// edges: (bins + 1) f64, ascending, at least two; infinite ones are allowed. NaN and values outside the edges are not
/// counted. torch.histogram with its `bins` as a tensor. Not differentiable; reproducible.
HistogramCounts histogram(const Tensor& x, const Tensor& edges);

}  // namespace lockstep
