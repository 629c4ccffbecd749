// A row-major tensor as lines along one dimension.
#pragma once

#include <cstdint>

#include "lockstep/runtime/shape.h"

namespace lockstep::cpu {

/// (outer, size, inner): the lines run over `size`.
struct Lines {
    std::int64_t outer = 1, size = 1, inner = 1;

    Lines(const Shape& shape, int dim) {
        for (int i = 0; i < shape.dims(); ++i) (i < dim ? outer : i == dim ? size : inner) *= shape[i];
    }
    std::int64_t count() const { return outer * inner; }
    /// The first element of line `number`; its elements are `inner` apart.
    std::int64_t first(std::int64_t number) const { return number / inner * inner * size + number % inner; }
};

}  // namespace lockstep::cpu
