// Histogram of a tensor's values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::internal {

/// As in TensorBoard's HistogramProto: `counts[i]` values are below `limits[i]` and not below the previous limit.
struct Histogram {
    double min = 0, max = 0, sum = 0, sum_of_squares = 0;
    std::int64_t count = 0;  ///< number of finite values, on which all other members are based
    std::vector<double> limits, counts;
    std::int64_t nans = 0, infinities = 0;
};

template <class T>
Histogram histogram_of(std::span<const T> values);
extern template Histogram histogram_of(std::span<const float>);
extern template Histogram histogram_of(std::span<const double>);

}  // namespace lockstep::internal
