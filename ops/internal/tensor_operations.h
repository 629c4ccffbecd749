// Operations on the elements of tensors: arithmetic, indexing, inspection.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/runtime/host_device.h"
#include "lockstep/runtime/operation.h"
#include "lockstep/runtime/shape.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

// Elementwise operations that are not functions of one number (unary_functions.h) or two (arithmetic.h).

/// x + no_shift is x for every x; + 0 would turn -0 into 0.
constexpr double no_shift = -0.0;
/// in: x (any layout; opaque is kept); out: scale * x + shift
struct Affine {
    static constexpr const char* name = "affine";
    static constexpr bool is_elementwise = true;
    double scale, shift;
};

// Operations that find or place elements. Sums: runtime/internal/core_operations.h.

/// in: x; out: i64, index of the first largest element of dimension `dim`, kept with size 1
struct ArgMax {
    static constexpr const char* name = "argmax";
    int dim;
};

/// in: x; out: i64, the positions along `dim` of the elements in order, which is stable; NaN is larger than every
/// number
struct ArgSort {
    static constexpr const char* name = "argsort";
    int dim;
    bool descending;
};

/// in: x; out: sums of each element and those before it along `dim`, or after it if `reverse`
struct CumulativeSum {
    static constexpr const char* name = "cumsum";
    int dim;
    bool reverse;
};

/// in: n tensors of equal sizes except along `dim`; out: their concatenation along `dim`, in the backend's layout if
/// all inputs have it and their sizes allow it
struct Cat {
    static constexpr const char* name = "cat";
    int dim;
};
/// The inverse of Cat. in: x; out: n tensors of `sizes` along `dim`, in the layout of x; outputs that are not needed
/// may be absent
struct Split {
    static constexpr const char* name = "split";
    int dim;
    std::vector<std::int64_t> sizes;
};

/// in: x i64; out: i64, f32 or f64, of the shape of x with another dimension before `dim`: 1 at the index given by the
/// element, 0 elsewhere. An index out of range is reported in the status word (StatusCode::target_out_of_range, with
/// row and value).
struct OneHot {
    static constexpr const char* name = "one_hot";
    static constexpr bool reports_status = true;
    int dim;
};

/// in: x; out: y with y[i] = x[i - before] if that index is within x, and `value` elsewhere; `before` may be negative
struct Pad {
    static constexpr const char* name = "pad";
    Shape before;
    double value;
};

// Inspection of a tensor's values. These operations have no gradient.

/// in: x; out: bool, whether it is neither infinite nor NaN
struct IsFinite {
    static constexpr const char* name = "isfinite";
    static constexpr bool is_elementwise = true;
};

/// in: x, edges (bins + 1) f64, ascending; out: counts (bins) i64 of elements in [edge, next edge), the last bin with
/// its upper edge; summary (ValueSummary::count) f64
struct CountInBins {
    static constexpr const char* name = "histogram";
};

/// Sums over the elements of a tensor; the members are the layout in memory.
struct ValueSummary {
    static constexpr int count = 7;
    double finite, min, max, sum, sum_squares;  ///< `finite`: number of finite elements; the others: their statistics
    double nan, infinite;                       ///< numbers of such elements
};

namespace element {

LOCKSTEP_HD_INLINE void add_value(ValueSummary& all, double x) {
    if (x != x) {
        all.nan += 1;
    } else if (x - x != 0) {
        all.infinite += 1;
    } else {
        if (all.finite == 0 || x < all.min) all.min = x;
        if (all.finite == 0 || x > all.max) all.max = x;
        all.finite += 1;
        all.sum += x;
        all.sum_squares += x * x;
    }
}

LOCKSTEP_HD_INLINE void join_values(ValueSummary& all, const ValueSummary& other) {
    if (other.finite > 0) {
        if (all.finite == 0 || other.min < all.min) all.min = other.min;
        if (all.finite == 0 || other.max > all.max) all.max = other.max;
    }
    all.finite += other.finite;
    all.sum += other.sum;
    all.sum_squares += other.sum_squares;
    all.nan += other.nan;
    all.infinite += other.infinite;
}

/// The bin of x; -1 if it is in no bin.
LOCKSTEP_HD_INLINE std::int64_t bin_of(const double* edges, std::int64_t bins, double x) {
    if (!(x >= edges[0] && x <= edges[bins])) return -1;
    std::int64_t low = 0, high = bins;  // edges[low] <= x, and x < edges[high] unless that is the last one
    while (high - low > 1) {
        const std::int64_t middle = low + (high - low) / 2;
        if (edges[middle] <= x)
            low = middle;
        else
            high = middle;
    }
    return low;
}

}  // namespace element

// The gradient of broadcasting.

/// `x` summed down to `shape`, which broadcasts to that of `x`.
Tensor reduce_to(const Tensor& x, const Shape& shape);

}  // namespace lockstep
