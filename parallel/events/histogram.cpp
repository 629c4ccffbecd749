#include "lockstep/parallel/events/histogram.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace lockstep::internal {

namespace {

/// torch's bins="tensorflow": from -1e20 to 1e20, each a tenth wider than the next one towards 0.
const std::vector<double>& all_limits() {
    static const std::vector<double> limits = [] {
        std::vector<double> positive;
        for (double limit = 1e-12; limit < 1e20; limit *= 1.1) positive.push_back(limit);
        std::vector<double> all;
        for (auto limit = positive.rbegin(); limit != positive.rend(); ++limit) all.push_back(-*limit);
        all.push_back(0);
        all.insert(all.end(), positive.begin(), positive.end());
        return all;
    }();
    return limits;
}

/// Bucket i lies between limits i and i + 1.
std::size_t bucket_of(double value) {
    const std::vector<double>& limits = all_limits();
    const auto above = std::upper_bound(limits.begin(), limits.end(), value) - limits.begin();
    return static_cast<std::size_t>(std::clamp<std::ptrdiff_t>(above - 1, 0, std::ssize(limits) - 2));
}

/// Buckets outside of all values say nothing, but for an empty one at the low end, as torch has it: its limit is where
/// the first bucket begins.
void keep_used(const std::vector<std::int64_t>& counts, Histogram& histogram) {
    const auto is_used = [](std::int64_t count) { return count > 0; };
    const auto first = std::find_if(counts.begin(), counts.end(), is_used);
    const auto last = std::find_if(counts.rbegin(), counts.rend(), is_used).base();
    const std::vector<double>& limits = all_limits();
    const auto begin = first - counts.begin(), end = last - counts.begin();
    histogram.limits.assign(limits.begin() + begin, limits.begin() + end + 1);
    histogram.counts.push_back(0);
    histogram.counts.insert(histogram.counts.end(), first, last);
}

}  // namespace

template <class T>
Histogram histogram_of(std::span<const T> values) {
    Histogram histogram;
    histogram.min = std::numeric_limits<double>::infinity();
    histogram.max = -histogram.min;
    std::vector<std::int64_t> counts(all_limits().size() - 1);
    for (const T element : values) {
        const auto value = static_cast<double>(element);
        if (!std::isfinite(value)) {
            ++(std::isnan(value) ? histogram.nans : histogram.infinities);
            continue;
        }
        ++histogram.count;
        histogram.min = std::min(histogram.min, value);
        histogram.max = std::max(histogram.max, value);
        histogram.sum += value;
        histogram.sum_of_squares += value * value;
        ++counts[bucket_of(value)];
    }
    if (histogram.count > 0) keep_used(counts, histogram);
    return histogram;
}

template Histogram histogram_of(std::span<const float>);
template Histogram histogram_of(std::span<const double>);

}  // namespace lockstep::internal
