// Copies of elements between strided tensors of one dtype.
#pragma once

#include "lockstep/ops/cuda/map.h"
#include "lockstep/ops/cuda/transpose.h"
#include "lockstep/ops/internal/visit_size.h"

namespace lockstep::cuda {

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
