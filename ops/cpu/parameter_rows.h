// Iteration over the rows of an arena's parameters in kernels of the CPU backend.
#pragma once

#include <algorithm>
#include <cstddef>

#include "lockstep/ops/update_rule.h"

namespace lockstep::cpu {

inline const ParameterRow& row_at(const void* rows, std::size_t row_bytes, int parameter) {
    return *reinterpret_cast<const ParameterRow*>(static_cast<const char*>(rows) +
                                                  row_bytes * static_cast<std::size_t>(parameter));
}
inline ParameterRow& row_at(void* rows, std::size_t row_bytes, int parameter) {
    return const_cast<ParameterRow&>(row_at(static_cast<const void*>(rows), row_bytes, parameter));
}

/// The number of the parameter with this row.
inline std::size_t number_of(const ParameterRow& row, const void* rows, std::size_t row_bytes) {
    return static_cast<std::size_t>(reinterpret_cast<const char*>(&row) - static_cast<const char*>(rows)) / row_bytes;
}

/// Calls work(row, first element within the range, elements) for every parameter of the range.
template <class Work>
void for_parameters(const ArenaRange& range, const void* rows, std::size_t row_bytes, const Work& work) {
    for (int i = range.first; i < range.last; ++i) {
        const ParameterRow& row = row_at(rows, row_bytes, i);
        const std::int64_t first = std::max(row.begin, range.begin);
        work(row, first - range.begin, std::min(row.end, range.end) - first);
    }
}

}  // namespace lockstep::cpu
