// Operations that steps are made of besides the model's own: sums along the tree of shards, agreement on the status,
// counters. All are small but the sums. Kernels: ops/cpu/step_kernels.cpp and its twin in ops/cuda.
#pragma once

#include <utility>
#include <vector>

#include "lockstep/runtime/operation.h"

namespace lockstep {

/// A sum over shards of which parts are there already. Part i is the sum over shards [ranges[i].first,
/// ranges[i].second); parts come in order, without gaps, and each is a node of the tree (or all shards present). They
/// are added as the tree over [0, last) would: the result has the bits of adding all shards at once.
/// in: n parts, contiguous, alike (f32 or f64); out: the sum, which may be the memory of part 0; with `accumulate` the
/// sum is added to what `out` holds: when the step is good, or `always`, where that does not outlive the step.
struct TreeSum {
    static constexpr const char* name = "tree_sum";
    static constexpr bool joins_shards = true;
    std::vector<std::pair<int, int>> ranges;
    bool accumulate = false;
    bool always = false;
    bool commits() const { return accumulate && !always; }
};

/// Brings the status words of all shards together: the agreed word keeps what it has (it is sticky), else takes the
/// report of the lowest shard that has one.
/// in: status words of shards 0, 1, ... (u8 bytes); out: the agreed word of the first device, in place
struct AgreeStatus {
    static constexpr const char* name = "agree_status";
};

/// Ends a step that may have been skipped: the next one goes on as after a good one. Any other status stays.
/// out: the agreed word of a device, in place
struct ForgetSkip {
    static constexpr const char* name = "forget_skip";
};

/// Counts a finished step in a device's StepState (u8 bytes), when the step is good: the microbatch, or the step (the
/// microbatch then starts at 0).
/// out: StepState, in place
struct AdvanceStep {
    static constexpr const char* name = "advance_step";
    bool whole_step;
    bool commits() const { return true; }
};

/// Takes over what was prepared beside lasting state, when the step is good.
/// in: bytes (u8); out: as many bytes, in place
struct TakeOver {
    static constexpr const char* name = "take_over";
    bool commits() const { return true; }
};

}  // namespace lockstep
