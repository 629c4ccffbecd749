// Copies of elements between strided tensors of one dtype.
#pragma once

#include <cstdint>

#include "lockstep/ops/cuda/map.h"
#include "lockstep/ops/cuda/transpose.h"
#include "lockstep/runtime/dtype.h"

namespace lockstep::cuda {

/// Calls `visit` with an unsigned integer of the dtype's size: a copy does not interpret its elements.
template <class Visit>
auto visit_size(DType dtype, Visit visit) {
    switch (size_of(dtype)) {
        case 8: return visit(std::uint64_t{});
        case 4: return visit(std::uint32_t{});
        case 2: return visit(std::uint16_t{});
        default: return visit(std::uint8_t{});
    }
}

struct Identity {
    template <class T>
    LOCKSTEP_HD_INLINE T operator()(T x) const {
        return x;
    }
};

/// A copy between two layouts of tensors of sizes `shape`, whose elements have `bytes` bytes.
struct CopyPlan {
    MapPlan<2> map;  // to, from
    TransposePlan transpose;

    CopyPlan(const Shape& shape, const Shape& to, const Shape& from, std::size_t bytes)
        : map(make_map<2>(shape, {to, from}, chunk_elements(bytes))),
          transpose(make_transpose(shape, to, from, bytes)) {}
};

/// T: an unsigned integer of the size of the elements.
template <class T>
void enqueue_copy(const Queue& queue, const char* name, const CopyPlan& plan, T* to, const T* from) {
    if (plan.transpose.tiles() > 0)
        transpose(queue, name, plan.transpose, to, from);
    else
        map<T, T, by_rows>(queue, name, plan.map, Identity{}, MapOperands<2>{to, {from}});
}

}  // namespace lockstep::cuda
