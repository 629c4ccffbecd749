// Operations that read and add elements at indices that a tensor holds.
//
// An index outside the dimension is reported in the status word (StatusCode::index_out_of_range, with row and value);
// its elements are 0, or are not added. `per_row`: indices in one row of the index; `batch`: whether its rows are those
// of the batch.
#pragma once

#include <cstdint>

namespace lockstep {

/// in: x, index (n) i64; out: y of the shape of x with n elements along `dim`: y[.., i, ..] = x[.., index[i], ..]
struct IndexSelect {
    static constexpr const char* name = "index_select";
    static constexpr bool reports_status = true;
    int dim;
    std::int64_t per_row;
    bool batch;
};
/// in: dy, index (n) i64; out: dx[.., j, ..] = sum of dy[.., i, ..] over all i with index[i] == j, in the order of i.
/// Indices equal to `ignored` add nothing; -1: none is ignored.
struct IndexSelectBackward {
    static constexpr const char* name = "index_select_backward";
    int dim;
    std::int64_t ignored;
};
/// in: x, index i64 of as many dimensions, whose sizes except along `dim` are at most those of x; out: y of the shape
/// of the index: y[.., i, ..] = x[.., index[.., i, ..], ..]
struct Gather {
    static constexpr const char* name = "gather";
    static constexpr bool reports_status = true;
    int dim;
    std::int64_t per_row;
    bool batch;
};
/// in: source, index i64 of as many dimensions and at most its sizes; out: y of a shape whose sizes except along `dim`
/// are at least those of the index: y[.., j, ..] = sum of source[.., i, ..] over all i with index[.., i, ..] == j, in
/// the order of i; other elements are 0
struct ScatterSum {
    static constexpr const char* name = "scatter_sum";
    static constexpr bool reports_status = true;
    int dim;
    std::int64_t per_row;
    bool batch;
};

/// in: index i64; out: y i64 of a shape whose sizes except along `dim` are at least those of the index:
/// y[.., j, ..] = 1 + the last i with index[.., i, ..] == j, or 0
struct LastPosition {
    static constexpr const char* name = "last_position";
    static constexpr bool reports_status = true;
    int dim;
    std::int64_t per_row;
    bool batch;
};

}  // namespace lockstep
