// Operations that reach across shards within a model. Those of steps: step_operations.h.
#pragma once

#include "lockstep/runtime/operation.h"

namespace lockstep {

/// Sums over the present shards along the tree of design: [lo, hi) splits at the largest power of two below its length.
/// in: n tensors, contiguous f32 or f64; out: their n sums, equal on all shards
struct SumOverShards {
    static constexpr const char* name = "sum_over_shards";
    static constexpr Reach reach = Reach::all_shards;
};

}  // namespace lockstep
