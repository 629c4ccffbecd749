// Copies of elements between strided tensors.
#pragma once

#include <cstdint>

#include "lockstep/ops/cuda/index.h"
#include "lockstep/runtime/dtype.h"

namespace lockstep::cuda {

template <class T>
struct CopyElement {
    StridedIndex<2> index;  // to, from
    T* to;
    const T* from;

    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        const auto at = index(i);
        to[at.of[0]] = from[at.of[1]];
    }
};

/// Calls visit with an unsigned integer of the dtype's size: a copy does not look inside.
template <class Visit>
auto visit_size(DType dtype, Visit visit) {
    switch (size_of(dtype)) {
        case 8: return visit(std::uint64_t{});
        case 4: return visit(std::uint32_t{});
        case 2: return visit(std::uint16_t{});
        default: return visit(std::uint8_t{});
    }
}

}  // namespace lockstep::cuda
