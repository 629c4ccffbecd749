// Operations that control a step and combine its shards.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/runtime/host_device.h"
#include "lockstep/runtime/operation.h"
#include "lockstep/runtime/random.h"

namespace lockstep {

// Operations of a step that are not part of the model: sums along the tree of shards, agreement on the status,
// counters. All are small except the sums. Kernels: ops/cpu/step_kernels.cpp and its twin in ops/cuda.

/// A sum over shards from partial sums. Part i is the sum over shards [ranges[i].first, ranges[i].second); parts are in
/// order, without gaps, and each is a node of the tree (or all shards present). They are added like the tree over [0,
/// last): the result has the bits of adding all shards at once.
/// in: n parts, contiguous, of the same shape and dtype (f32 or f64); out: the sum, which may be the memory of part 0;
/// with `accumulate` the sum is added to the previous value of `out`: if the step is good or, for memory that does not
/// outlive the step, `always`.
struct TreeSum {
    static constexpr const char* name = "tree_sum";
    static constexpr bool combines_shards = true;
    std::vector<std::pair<int, int>> ranges;
    bool accumulate = false;
    bool always = false;
    bool commits() const { return accumulate && !always; }
};

/// Combines the status words of all shards: the agreed word keeps an existing report (it is sticky), otherwise it takes
/// the report of the lowest shard that has one.
/// in: status words of shards 0, 1, ... (u8 bytes); out: the agreed word of the first device, in place
struct AgreeStatus {
    static constexpr const char* name = "agree_status";
};

/// Ends a step that may have been skipped: the next one continues as after a good one. Any other status is unchanged.
/// out: the agreed word of a device, in place
struct ClearSkipFlag {
    static constexpr const char* name = "clear_skip_flag";
};

/// Counter of StepCounters that AdvanceStep increments; after a step, the others start at 0.
enum class Counted : std::uint8_t { inference, microbatch, step };

/// Counts a finished forward or step in a device's StepCounters (u8 bytes) if the status is good. out: StepCounters, in
/// place
struct AdvanceStep {
    static constexpr const char* name = "advance_step";
    Counted counted;
    bool commits() const { return true; }
    LOCKSTEP_HD_INLINE void apply(StepCounters& state) const {
        state.inference = counted == Counted::inference ? state.inference + 1
                          : counted == Counted::step    ? 0
                                                        : state.inference;
        state.micro = counted == Counted::microbatch ? state.micro + 1 : counted == Counted::step ? 0 : state.micro;
        state.step += counted == Counted::step ? 1 : 0;
    }
};

// Operations that reach across shards within a model.

/// Sums over the present shards along the tree: [lo, hi) splits at the largest power of two below its length.
/// in: n tensors, contiguous f32 or f64; out: their n sums, equal on all shards
struct SumOverShards {
    static constexpr const char* name = "sum_over_shards";
    static constexpr OperationScope scope = OperationScope::all_shards;
};

}  // namespace lockstep
