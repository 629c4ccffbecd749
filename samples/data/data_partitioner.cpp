#include "lockstep/samples/data/data_partitioner.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/log.h"
#include "lockstep/samples/data/python_random.h"

namespace samples {

DataPartitioner::DataPartitioner(std::int64_t length, const std::vector<double>& fractions, std::uint64_t seed)
    : length_(length) {
    if (length < 0)
        throw lockstep::InvalidArgument(fmt::format("DataPartitioner: length is {} rows; expected 0 or more", length));
    double sum = 0;
    for (const double fraction : fractions) {
        if (!(fraction >= 0 && fraction <= 1))
            throw lockstep::InvalidArgument(fmt::format("DataPartitioner: fraction is {}; expected 0 to 1", fraction));
        sum += fraction;
    }
    if (sum > 1 + 1e-9)
        throw lockstep::InvalidArgument(
            fmt::format("DataPartitioner: sum of the fractions is {}; expected 1 or less", sum));
    std::vector<std::int64_t> rows(static_cast<std::size_t>(length));
    std::iota(rows.begin(), rows.end(), 0);
    PythonRandom(seed).shuffle(rows);
    auto next = rows.begin();
    for (const double fraction : fractions) {
        const auto wanted = static_cast<std::ptrdiff_t>(fraction * static_cast<double>(length));
        const auto end = next + std::min(wanted, rows.end() - next);
        parts_.emplace_back(next, end);
        next = end;
    }
    lost_ = rows.end() - next;
    if (lost_ > 0 && sum > 1 - 1e-9)  // otherwise the caller has left rows over on purpose
        lockstep::warn(fmt::format("DataPartitioner: {} of {} rows are in no part: each part's size is rounded down",
                                   lost_, length));
}

const std::vector<std::int64_t>& DataPartitioner::part(std::size_t index) const {
    if (index >= parts_.size())
        throw lockstep::InvalidArgument(
            fmt::format("DataPartitioner: no part {}; expected 0 to {}", index, std::ssize(parts_) - 1));
    return parts_[index];
}

void DataPartitioner::require_length(std::int64_t length) const {
    if (length != length_)
        throw lockstep::InvalidArgument(
            fmt::format("DataPartitioner: dataset has {} rows; expected {}", length, length_));
}

}  // namespace samples
