// Operations on the rows of an arena's parameters, and what updates in the library's functions are made of besides
// those. Kernels: ops/cpu/update.cpp, ops/cuda/updates.cu.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "lockstep/ops/update_rule.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

/// Takes over what the host wrote in every row, all but the number of updates, which devices keep themselves.
/// in: rows as the host wants them (bytes); out: rows, in place
struct StoreRows final : Operation {
    explicit StoreRows(std::size_t bytes) : row_bytes(bytes) {}
    std::size_t row_bytes;
    std::string_view name() const override { return "store_rows"; }
    void describe(Signature& s) const override { s.add(row_bytes); }
};

/// Counts an update of the parameters named whose updates count, when the step is good.
/// out: rows, in place
struct CountUpdates final : Operation {
    CountUpdates(std::size_t bytes, std::vector<int> p) : row_bytes(bytes), parameters(std::move(p)) {}
    std::size_t row_bytes;
    std::vector<int> parameters;
    std::string_view name() const override { return "count_updates"; }
    void describe(Signature& s) const override {
        s.add(row_bytes);
        for (const int parameter : parameters) s.add(parameter);
    }
    bool commits() const override { return true; }
};

/// A number of a row.
enum class RowNumber : std::uint8_t {
    real,    ///< a double at the offset
    flag,    ///< a bool at the offset, as 0 or 1
    updates  ///< ParameterRow::updates and one: the update that is being made counts
};
/// in: rows (bytes); out: a number of the row of every element's parameter, (elements), 0 in gaps; or, where the range
/// has one parameter, of that, ()
struct ReadRows final : Operation {
    ReadRows(ArenaRange r, std::size_t bytes, std::size_t at, RowNumber n)
        : range(r), row_bytes(bytes), offset(at), number(n) {}
    ArenaRange range;
    std::size_t row_bytes, offset;
    RowNumber number;
    std::string_view name() const override { return "read_rows"; }
    void describe(Signature& s) const override {
        range.describe(s);
        s.add(row_bytes).add(offset).add(number);
    }
    bool is_elementwise() const override { return true; }
};

/// Elements of trainable parameters become the values given, when the step is good; gaps stay.
/// in: rows (bytes), values (elements); out (in place): the range of an arena (elements)
struct StoreRange final : Operation {
    StoreRange(ArenaRange r, std::size_t bytes) : range(r), row_bytes(bytes) {}
    ArenaRange range;
    std::size_t row_bytes;
    std::string_view name() const override { return "store_range"; }
    void describe(Signature& s) const override {
        range.describe(s);
        s.add(row_bytes);
    }
    bool commits() const override { return true; }
    bool is_elementwise() const override { return true; }
};

}  // namespace lockstep
