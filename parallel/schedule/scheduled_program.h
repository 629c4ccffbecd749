// A batch program on its devices: one copy per shard, executed record by record across all of them.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/parallel/schedule/instance.h"
#include "lockstep/parallel/schedule/schedule_builder.h"

namespace lockstep {

/// Emits the pieces of a schedule; see recipes.h.
using Recipe = std::function<std::size_t(ScheduleBuilder&)>;
/// The recipe of a program that is not part of a step.
Recipe recipe_of(Pass pass);

/// A strategy's objects for one program: how values cross shards, and how gradients are reduced.
struct ProgramStrategy {
    std::unique_ptr<AcrossShards> across;
    std::unique_ptr<GradientReduction> reduction;  ///< null for a program without gradients
};

/// The schedule of a batch program with the workspaces that it needs.
class ScheduledProgram {
public:
    ScheduledProgram(const Topology& topology, EngineMemory& memory, const ConstantCache& constants,
                     std::shared_ptr<const BatchProgram> batch, const ProgramStrategy& strategy, const Recipe& recipe);

    const BatchProgram& batch() const { return *batch_; }
    const std::shared_ptr<const BatchProgram>& shared_batch() const { return batch_; }
    /// Parameters that have gradients after its backward.
    const std::set<ParameterId>& parameters() const { return parameters_; }
    const ShardMemory& memory() const { return memory_; }
    /// An unused instance, created on first use; available again when the caller releases it.
    std::shared_ptr<Instance> acquire();
    /// An instance in workspaces that several programs share, one per shard and large enough for each of them.
    std::shared_ptr<Instance> instance_in(std::vector<std::shared_ptr<Buffer>> workspaces) const {
        return std::make_shared<Instance>(schedule_, std::move(workspaces));
    }
    /// Whether an instance is in use.
    bool in_use() const;
    /// Frees the instances that are not in use, whose work must have run.
    void release_memory();
    void enqueue_forward(Instance& instance, Phase phase, StepRecorder* recorder) {
        instance.enqueue(schedule_, 0, forward_end_, phase, recorder, SpanKind::forward);
    }
    void enqueue_backward(Instance& instance, Phase phase, StepRecorder* recorder) {
        instance.enqueue(schedule_, forward_end_, schedule_.size(), phase, recorder, SpanKind::backward);
    }

private:
    const Topology& topology_;
    std::shared_ptr<const BatchProgram> batch_;
    std::set<ParameterId> parameters_;
    ShardMemory memory_;
    Schedule schedule_;
    std::size_t forward_end_ = 0;
    std::vector<std::shared_ptr<Instance>> instances_;
};

}  // namespace lockstep
