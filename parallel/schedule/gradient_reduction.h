// Interface between a schedule and its strategy: how gradients are reduced, and how values of one shard reach the
// others. The strategies are in reduce/.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "lockstep/parallel/schedule/batch_program.h"
#include "lockstep/parallel/schedule/memory_ref.h"
#include "lockstep/parallel/schedule/schedule.h"

namespace lockstep {

class ScheduleBuilder;

/// A reduction's requirements for the gradients of one shard.
struct GradientPlan {
    std::map<int, MemoryRef> direct;  ///< by trace id: written directly to the memory in which they are summed
    std::vector<long> kept;           ///< by delivery: the last record before its memory may be reused
};

/// The reduction of one program: sums gradients along the tree of shards, updates, and distributes the weights, bucket
/// by bucket, while backward is running.
class GradientReduction {
public:
    virtual ~GradientReduction() = default;
    /// Parameters that have gradients after backward.
    virtual const std::set<ParameterId>& parameters() const = 0;
    /// Requirements for the gradients of a shard that this process computes.
    virtual GradientPlan plan(int shard, const ShardProgram& program) const = 0;
    /// Emits the sums that are possible when backward has reached `done`.
    virtual void emit_ready(ScheduleBuilder& builder, RecordPair done) = 0;
    /// Emitted after the last bucket: the gate, the updates that had to wait for it, and the count of every parameter's
    /// updates.
    virtual void emit_end(ScheduleBuilder& builder) = 0;
    /// Whether a step may be skipped at the gate.
    virtual bool may_skip() const = 0;
    /// Location of the scale (f64) of a scaled loss on a device.
    virtual MemoryRef loss_scale(DeviceIndex device) const = 0;
};

/// Operations of a program across all shards, in this process and in others.
class AcrossShards {
public:
    virtual ~AcrossShards() = default;
    /// The inputs of the records `records` of all present shards, in order of shards. They are readable on the stream
    /// of the first shard held, which waits for them.
    virtual std::vector<MemoryRef> emit_inputs(ScheduleBuilder& builder, RecordPair records) = 0;
    /// The outputs of the program of all present shards, in order of shards: readable on the first device's stream of
    /// reductions, which waits for them.
    virtual std::vector<MemoryRef> emit_outputs(ScheduleBuilder& builder) = 0;
    /// The status words of the first `shards` shards: readable on the first device's stream of commits, which has
    /// waited for them.
    virtual std::vector<MemoryRef> emit_statuses(ScheduleBuilder& builder, int shards) = 0;
    // Values of shard 0 only. Between ranks, valid only after emit_statuses.

    /// The task of a record that commits, on the first device.
    virtual TaskSpec commit_task(ScheduleBuilder& builder, const Record& record) = 0;
    /// The content of `buffer`, an arena of the first device, after the microbatches of a step.
    virtual MemoryRef prepared(ScheduleBuilder& builder, const MemoryRef& buffer) = 0;
    virtual MemoryRef loss(ScheduleBuilder& builder) = 0;
};

}  // namespace lockstep
