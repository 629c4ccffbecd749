// What values a tensor holds: operations that are looked at and not differentiated.
#pragma once

#include <cstdint>

#include "lockstep/runtime/element.h"
#include "lockstep/runtime/operation.h"

namespace lockstep {

/// in: x; out: bool, whether it is neither infinite nor NaN
struct IsFinite {
    static constexpr const char* name = "isfinite";
    static constexpr bool is_elementwise = true;
};

/// in: x, edges (bins + 1) f64, ascending; out: counts (bins) i64 of elements in [edge, next edge), those of the last
/// one with its upper edge; summary (ValueSummary::count) f64
struct CountInBins {
    static constexpr const char* name = "histogram";
};

/// What is summed over the elements of a tensor: its members are its layout in memory.
struct ValueSummary {
    static constexpr int count = 7;
    double finite, min, max, sum, sum_squares;  ///< of finite elements
    double nan, infinite;                       ///< how many
};

namespace element {

LOCKSTEP_ELEMENT void add_value(ValueSummary& all, double x) {
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

LOCKSTEP_ELEMENT void join_values(ValueSummary& all, const ValueSummary& other) {
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

/// The bin of x; -1 for none.
LOCKSTEP_ELEMENT std::int64_t bin_of(const double* edges, std::int64_t bins, double x) {
    if (!(x >= edges[0] && x <= edges[bins])) return -1;
    std::int64_t low = 0, high = bins;  // edges[low] <= x, and x < edges[high] or that is the last one
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
}  // namespace lockstep
