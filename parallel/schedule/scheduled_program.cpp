#include "lockstep/parallel/schedule/scheduled_program.h"

#include <algorithm>

#include "lockstep/parallel/schedule/recipes.h"

namespace lockstep {

Recipe recipe_of(Pass pass) {
    switch (pass) {
        case Pass::forward_only: return emit_training_forward;
        case Pass::training: return emit_forward_and_backward;
        case Pass::step: return emit_step;
        case Pass::inference: break;
    }
    return emit_inference;
}

ScheduledProgram::ScheduledProgram(const Topology& topology, EngineMemory& memory, const ConstantCache& constants,
                                   std::shared_ptr<const BatchProgram> batch, const ProgramStrategy& strategy,
                                   const Recipe& recipe)
    : topology_(topology),
      batch_(std::move(batch)),
      memory_(topology, memory, constants, *batch_, strategy.reduction.get()) {
    if (strategy.reduction) parameters_ = strategy.reduction->parameters();
    ScheduleBuilder builder(Emitter(topology, memory, schedule_), *batch_, memory_, *strategy.across,
                            strategy.reduction.get());
    forward_end_ = recipe(builder);
    schedule_.put_off_calls(0, forward_end_);
    schedule_.put_off_calls(forward_end_, schedule_.size());
}

std::shared_ptr<Instance> ScheduledProgram::acquire() {
    for (const auto& instance : instances_)
        if (instance.use_count() == 1) return instance;
    std::vector<std::shared_ptr<Buffer>> workspaces;
    workspaces.resize(static_cast<std::size_t>(batch_->held.first));  // null for shards of other processes
    for (int shard = batch_->held.first; shard < batch_->held.last; ++shard)
        workspaces.push_back(Buffer::allocate(topology_.compute(shard), memory_.workspace_bytes(shard), "activations"));
    return instances_.emplace_back(std::make_shared<Instance>(schedule_, std::move(workspaces)));
}

bool ScheduledProgram::in_use() const {
    return std::any_of(instances_.begin(), instances_.end(),
                       [](const auto& instance) { return instance.use_count() > 1; });
}

void ScheduledProgram::release_memory() {
    std::erase_if(instances_, [](const auto& instance) { return instance.use_count() == 1; });
}

}  // namespace lockstep
