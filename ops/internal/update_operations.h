// Operations on the rows of an arena's parameters, and what updates in the library's functions are made of besides
// those. Kernels: ops/cpu/update.cpp, ops/cuda/updates.cu.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "lockstep/ops/update_rule.h"
#include "lockstep/runtime/operation.h"

namespace lockstep {

/// Takes over what the host wrote in every row, all but the number of updates, which devices keep themselves.
/// in: rows as the host wants them (bytes); out: rows, in place
struct StoreRows {
    static constexpr const char* name = "store_rows";
    std::size_t row_bytes;
};

/// Counts an update of the parameters named whose updates count, when the step is good.
/// out: rows, in place
struct CountUpdates {
    static constexpr const char* name = "count_updates";
    std::size_t row_bytes;
    std::vector<int> parameters;
    bool commits() const { return true; }
};

/// A number of a row.
enum class RowNumber : std::uint8_t {
    real,    ///< a double at the offset
    flag,    ///< a bool at the offset, as 0 or 1
    updates  ///< ParameterRow::updates and one: the update that is being made counts
};
/// in: rows (bytes); out: a number of the row of every element's parameter, (elements), 0 in gaps; or, where the range
/// has one parameter, of that, ()
struct ReadRows {
    static constexpr const char* name = "read_rows";
    static constexpr bool is_elementwise = true;
    ArenaRange range;
    std::size_t row_bytes, offset;
    RowNumber number;
};

/// Elements of trainable parameters become the values given, when the step is good; gaps stay.
/// in: rows (bytes), values (elements); out (in place): the range of an arena (elements)
struct StoreRange {
    static constexpr const char* name = "store_range";
    static constexpr bool is_elementwise = true;
    ArenaRange range;
    std::size_t row_bytes;
    bool commits() const { return true; }
};

}  // namespace lockstep
