#include "lockstep/parallel/data/subset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/parallel/data/internal/torch_generator.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/log.h"

namespace lockstep::detail {

void require_rows_of(const char* who, std::span<const std::int64_t> indices, std::int64_t size) {
    for (std::size_t i = 0; i < indices.size(); ++i)
        if (indices[i] < 0 || indices[i] >= size)
            throw InvalidArgument(fmt::format("{}: index {} at position {}; expected 0 or more and less than {}", who,
                                              indices[i], i, size));
}

std::vector<std::vector<std::int64_t>> split_rows(std::int64_t size, const std::vector<std::int64_t>& lengths,
                                                  std::uint64_t seed) {
    if (lengths.empty()) throw InvalidArgument("random_split: no lengths; expected one for each part");
    std::int64_t left = size;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        if (lengths[i] < 0)
            throw InvalidArgument(
                fmt::format("random_split: length {} at index {}; expected 0 or more", lengths[i], i));
        left = lengths[i] > left ? -1 : left - lengths[i];
        if (left < 0) break;
    }
    if (left != 0)
        throw InvalidArgument(
            fmt::format("random_split: the sum of the lengths is not {}, the number of rows; expected that sum, or "
                        "fractions whose sum is 1",
                        size));
    const std::vector<std::int64_t> order = TorchGenerator(seed).permutation("random_split", size);
    std::vector<std::vector<std::int64_t>> parts;
    auto next = order.begin();
    for (const std::int64_t length : lengths) {
        parts.emplace_back(next, next + length);
        next += length;
    }
    return parts;
}

std::vector<std::vector<std::int64_t>> split_rows(std::int64_t size, const std::vector<double>& fractions,
                                                  std::uint64_t seed) {
    long double exact = 0;  // more digits than float, because Python's sum is more accurate as well
    for (std::size_t i = 0; i < fractions.size(); ++i) {
        if (!(fractions[i] >= 0 && fractions[i] <= 1))
            throw InvalidArgument(
                fmt::format("random_split: the fraction at index {} is {}; expected 0 to 1", i, fractions[i]));
        exact += static_cast<long double>(fractions[i]);
    }
    const auto sum = static_cast<double>(exact);
    if (!(sum <= 1 && 1 - sum <= 1e-9))  // as math.isclose
        throw InvalidArgument(fmt::format("random_split: the sum of the fractions is {}; expected 1", sum));
    std::vector<std::int64_t> lengths;
    std::int64_t left = size;
    for (const double fraction : fractions) {
        lengths.push_back(static_cast<std::int64_t>(std::floor(static_cast<double>(size) * fraction)));
        left -= lengths.back();
    }
    for (std::size_t i = 0; left > 0; ++i, --left) ++lengths[i % lengths.size()];
    for (std::size_t i = 0; i < lengths.size(); ++i)
        if (lengths[i] == 0) warn(fmt::format("random_split: the part at index {} has no rows", i));
    return split_rows(size, lengths, seed);
}

std::vector<std::int64_t> ends_of_parts(const std::vector<std::int64_t>& sizes) {
    if (sizes.empty()) throw InvalidArgument("ConcatDataset: no datasets; expected at least one");
    std::vector<std::int64_t> ends;
    std::int64_t end = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        if (sizes[i] < 0 || __builtin_add_overflow(end, sizes[i], &end))
            throw InvalidArgument(fmt::format(
                "ConcatDataset: dataset {} has {} rows; expected 0 or more, and less than 2^63 in total", i, sizes[i]));
        ends.push_back(end);
    }
    return ends;
}

RowOfPart row_of_part(const std::vector<std::int64_t>& ends, std::int64_t row) {
    const auto end = std::upper_bound(ends.begin(), ends.end(), row);
    const auto part = static_cast<std::size_t>(end - ends.begin());
    return {part, part == 0 ? row : row - ends[part - 1]};
}

void require_equal_fields(std::span<const RowField> first, std::span<const RowField> other) {
    bool equal = first.size() == other.size();
    for (std::size_t i = 0; equal && i < first.size(); ++i)
        equal = first[i].dtype == other[i].dtype && first[i].shape == other[i].shape;
    if (!equal)
        throw InvalidArgument(
            "ConcatDataset: the datasets have rows of different shapes or dtypes; expected equal rows");
}

}  // namespace lockstep::detail
