// Elements as numbers of their size, for operations that do not interpret them.
#pragma once

#include <cstdint>

#include "lockstep/runtime/dtype.h"

namespace lockstep {

/// Calls `visit` with an unsigned integer of the dtype's size.
template <class Visit>
auto visit_size(DType dtype, Visit visit) {
    switch (size_of(dtype)) {
        case 8: return visit(std::uint64_t{});
        case 4: return visit(std::uint32_t{});
        case 2: return visit(std::uint16_t{});
        default: return visit(std::uint8_t{});
    }
}

}  // namespace lockstep
