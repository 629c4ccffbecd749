// Rows of parameters that SGD updates, for tests of kernels.
#pragma once

#include <cstdint>

#include "lockstep/ops/sgd.h"
#include "lockstep/ops/update_rule.h"

namespace lockstep::test {

using SgdRow = RowWith<SgdOptions>;

inline SgdRow sgd_row(std::int64_t begin, std::int64_t end, std::int64_t updates, const SgdOptions& options) {
    SgdRow row;
    row.row.begin = begin;
    row.row.end = end;
    row.row.updates = updates;
    row.options = options;
    return row;
}

}  // namespace lockstep::test
