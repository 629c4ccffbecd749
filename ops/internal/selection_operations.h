// Operations that compare elements and choose between them.
#pragma once

#include <cstdint>

#include "lockstep/runtime/host_device.h"

namespace lockstep {

/// A set of relations between two numbers, as bits: 1 less, 2 equal, 4 greater, 8 unordered (one of them is NaN).
struct Relations {
    std::uint8_t bits;

    /// Whether one of the relations holds between a and b.
    template <class T>
    LOCKSTEP_HD_INLINE bool hold(T a, T b) const {
        const int found = a < b ? 1 : a == b ? 2 : a > b ? 4 : 8;
        return (bits & found) != 0;
    }
};

/// in: a, b (of one dtype, broadcast together, any strides); out: bool, whether one of the relations holds between a
/// and b
struct Compare {
    static constexpr const char* name = "compare";
    static constexpr bool is_elementwise = true;
    Relations relations;
};

/// in: condition (bool), a, b (of one dtype), all broadcast together, any strides; out: a where the condition holds,
/// b elsewhere
struct Where {
    static constexpr const char* name = "where";
    static constexpr bool is_elementwise = true;
};

/// in: x, not empty along `dim`; out: the largest or smallest element along it, kept with size 1; NaN if there is one
struct Extreme {
    static constexpr const char* name = "extreme";
    int dim;
    bool smallest;
};

}  // namespace lockstep
