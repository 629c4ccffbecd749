// Sums whose error hardly depends on the number of terms.
#pragma once

#include <cstdint>
#include <type_traits>

#include "lockstep/ops/cuda/unroll.h"
#include "lockstep/runtime/host_device.h"

namespace lockstep::cuda {

/// Sum of doubles, or of integers modulo 2^64.
template <class T>
struct RunningSum {
    T total;

    LOCKSTEP_HD_INLINE void add(T value) { total += value; }
    LOCKSTEP_HD_INLINE void add(const RunningSum& other) { total += other.total; }
    LOCKSTEP_HD_INLINE void scale(T factor) { total *= factor; }
    LOCKSTEP_HD_INLINE T value() const { return total; }
};

/// Sum of floats with the rounding errors of all additions, about as accurate as a sum in double. Most GPUs add doubles
/// 64 times slower than floats.
template <>
struct alignas(8) RunningSum<float> {
    float total, lost;

    LOCKSTEP_HD_INLINE void add(float value) {
        // Knuth's TwoSum: `lost` receives the exact error of the addition.
        const float sum = total + value;
        const float from_value = sum - total;
        lost += (total - (sum - from_value)) + (value - from_value);
        total = sum;
    }
    LOCKSTEP_HD_INLINE void add(const RunningSum& other) {
        add(other.total);
        lost += other.lost;
    }
    LOCKSTEP_HD_INLINE void scale(float factor) {
        total *= factor;
        lost *= factor;
    }
    /// The errors of sums that are not finite are not numbers.
    LOCKSTEP_HD_INLINE float value() const { return total - total == 0 ? total + lost : total; }
};

/// Sum of few numbers in registers, in pairs: fewer instructions than with the errors of all additions, which are no
/// more than log2(n) roundings here. Overwrites them.
template <class T, int n>
LOCKSTEP_HD_INLINE T sum_in_pairs(T (&values)[n]) {
    LOCKSTEP_UNROLL
    for (int step = 1; step < n; step *= 2) {
        LOCKSTEP_UNROLL
        for (int i = 0; i + step < n; i += 2 * step) values[i] += values[i + step];
    }
    return values[0];
}

/// Type in which elements of type T (after `upcast`) are added.
template <class T>
using SumOf = RunningSum<std::conditional_t<std::is_integral_v<T>, std::int64_t, T>>;

}  // namespace lockstep::cuda
