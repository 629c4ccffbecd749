// Loops whose loads overlap: several are in flight before the first value is used.
#pragma once

#include <cstdint>

#include "lockstep/ops/cuda/unroll.h"
#include "lockstep/runtime/host_device.h"

namespace lockstep::cuda {

/// Calls use(load(k), k) for k = first, first + step, ... before `end`, in this order, after `at_once` loads each.
template <int at_once, class Load, class Use>
LOCKSTEP_HD_INLINE void for_loaded(std::int64_t first, std::int64_t end, std::int64_t step, const Load& load,
                                   const Use& use) {
    using Loaded = decltype(load(first));
    std::int64_t k = first;
    LOCKSTEP_NO_UNROLL
    for (; k + (at_once - 1) * step < end; k += at_once * step) {
        Loaded loaded[at_once];
        LOCKSTEP_UNROLL
        for (int i = 0; i < at_once; ++i) loaded[i] = load(k + i * step);
        LOCKSTEP_UNROLL
        for (int i = 0; i < at_once; ++i) use(loaded[i], k + i * step);
    }
    if (k >= end) return;
    Loaded loaded[at_once - 1] = {};
    LOCKSTEP_UNROLL
    for (int i = 0; i < at_once - 1; ++i)
        if (k + i * step < end) loaded[i] = load(k + i * step);
    LOCKSTEP_UNROLL
    for (int i = 0; i < at_once - 1; ++i)
        if (k + i * step < end) use(loaded[i], k + i * step);
}

}  // namespace lockstep::cuda
