// What a histogram says of a tensor's values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::internal {

/// As in TensorBoard's HistogramProto: `counts[i]` values lie below `limits[i]` and not below the limit before.
struct Histogram {
    double min = 0, max = 0, sum = 0, sum_of_squares = 0;
    std::int64_t count = 0;  ///< of finite values, of which all the rest speaks
    std::vector<double> limits, counts;
    std::int64_t nans = 0, infinities = 0;
};

template <class T>
Histogram histogram_of(std::span<const T> values);
extern template Histogram histogram_of(std::span<const float>);
extern template Histogram histogram_of(std::span<const double>);

}  // namespace lockstep::internal
