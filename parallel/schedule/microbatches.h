// A step that computes its batch in microbatches: one after another, with one update at the end.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "lockstep/parallel/schedule/scheduled_program.h"

namespace lockstep {

/// Programs that run one after another: those that sum the denominators of the loss over all microbatches, then one per
/// microbatch. Only the last one agrees on the status, updates and commits. All share one set of workspaces.
class Microbatches {
public:
    using StrategyOf = std::function<ProgramStrategy(const BatchProgram& batch, const Microbatch& part)>;
    using Scatter = std::function<void(const ScheduledProgram& program, const Instance& instance)>;

    /// `parts`: one per microbatch. Throws InvalidArgument unless all have denominators of the same kinds and deliver
    /// gradients of the same parameters.
    Microbatches(const Topology& topology, EngineMemory& memory, const ConstantCache& constants,
                 const std::vector<std::shared_ptr<const BatchProgram>>& parts, const StrategyOf& strategy_of,
                 bool checks_loss);

    const std::vector<std::shared_ptr<const BatchProgram>>& parts() const { return parts_; }
    /// All programs in execution order.
    const std::vector<ScheduledProgram*>& programs() const { return in_order_; }
    /// Allocates the memory that `enqueue` needs; throws OutOfMemory before anything is enqueued.
    void prepare();
    /// Frees that memory. The work enqueued with it must have run.
    void release_memory();
    void enqueue(const Scatter& scatter, Phase phase, StepRecorder* recorder);
    DType loss_dtype() const { return carry_->loss_dtype(); }

private:
    const Topology& topology_;
    std::vector<std::shared_ptr<const BatchProgram>> parts_;
    std::shared_ptr<const MicrobatchCarry> carry_;
    std::vector<std::unique_ptr<ScheduledProgram>> programs_;
    std::vector<ScheduledProgram*> in_order_;
    std::vector<std::shared_ptr<Instance>> instances_;  ///< one per program
};

}  // namespace lockstep
