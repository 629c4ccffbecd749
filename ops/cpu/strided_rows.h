// Parallel iteration over the rows of several strided tensors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/ops/cpu/strided.h"

namespace lockstep::cpu {

/// Calls row(offsets, elements) for rows, or for parts of the only one.
template <std::size_t count, class Row>
void for_strided_rows(int threads, const StridedWalk<count>& walk, const Row& row) {
    if (walk.rows() == 1) {
        for_element_parts(threads, walk.run(), [&](std::int64_t begin, std::int64_t end) {
            typename StridedWalk<count>::Offsets at;
            for (std::size_t t = 0; t < count; ++t) at[t] = begin * walk.steps()[t];
            row(at, end - begin);
        });
        return;
    }
    const std::int64_t grain = std::max<std::int64_t>(1, element_grain / std::max<std::int64_t>(1, walk.run()));
    for_parts(worthwhile_threads(threads, walk.rows() * walk.run()), walk.rows(), grain,
              [&](std::int64_t begin, std::int64_t end) {
                  walk.for_rows(begin, end, [&](const auto& at) { row(at, walk.run()); });
              });
}

}  // namespace lockstep::cpu
