// Data sets whose rows depend on their context, and what they should be.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "lockstep/parallel/data/dataset.h"
#include "lockstep/parallel/data/row_context.h"

namespace augmented_data {

namespace ls = lockstep;

/// Row i: its number and two random numbers of its context.
inline std::vector<double> expected_row(ls::EpochKey epoch, std::int64_t row) {
    ls::RowContext context(epoch, row);
    const double first = context.uniform();
    return {static_cast<double>(row), first, static_cast<double>(context.integer(1000))};
}

/// Those of several rows, one after another.
inline std::vector<double> expected_rows(ls::EpochKey epoch, std::span<const std::int64_t> rows) {
    std::vector<double> values;
    for (const std::int64_t row : rows)
        for (const double value : expected_row(epoch, row)) values.push_back(value);
    return values;
}

/// Got row by row.
struct ByRow {
    std::int64_t rows = 0;
    std::int64_t size() const { return rows; }
    std::tuple<ls::Tensor> get(std::int64_t row, ls::RowContext& context) const {
        const double first = context.uniform();
        return {ls::Tensor::from(
            std::vector<double>{static_cast<double>(row), first, static_cast<double>(context.integer(1000))}, {3})};
    }
};

/// Written into the batch.
struct Written {
    std::int64_t rows = 0;
    std::int64_t size() const { return rows; }
    std::array<ls::RowField, 1> fields() const { return {ls::RowField{ls::DType::f64, {3}}}; }
    void read(std::span<const std::int64_t> numbers, std::span<std::byte* const> to,
              std::span<ls::RowContext> contexts) const {
        auto* out = reinterpret_cast<double*>(to[0]);
        for (std::size_t i = 0; i < numbers.size(); ++i) {
            *out++ = static_cast<double>(numbers[i]);
            *out++ = contexts[i].uniform();
            *out++ = static_cast<double>(contexts[i].integer(1000));
        }
    }
};

/// All rows of an epoch that this process holds.
template <class Loader>
std::vector<double> rows_of_epoch(Loader& loader, std::uint64_t epoch, std::int64_t first_batch = 0) {
    std::vector<double> values;
    for (auto& [x] : loader.epoch(epoch, first_batch))
        for (const double value : x.gathered().template to_vector<double>()) values.push_back(value);
    return values;
}

}  // namespace augmented_data
