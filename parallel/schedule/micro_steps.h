// The programs of a step that takes its batch in micro-steps.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/parallel/engine/batch_inputs.h"
#include "lockstep/parallel/schedule/placed_program.h"

namespace lockstep {

/// Programs that run one after another: those that weigh (which sum the weights of the loss over all micro-steps), then
/// one a micro-step, of which the last one alone agrees on the status, updates and commits. All share one set of
/// workspaces.
class MicroSteps {
public:
    /// `parts`: one a micro-step. Throws InvalidArgument unless all have the same kinds of weights and deliver
    /// gradients of the same parameters.
    MicroSteps(EngineContext& context, const ConstantCache& constants,
               const std::vector<std::shared_ptr<BatchProgram>>& parts, Optimizer& optimizer, const GateRules& gate,
               bool checks_loss);

    const std::vector<std::shared_ptr<BatchProgram>>& parts() const { return parts_; }
    /// All programs in the order in which they run.
    const std::vector<PlacedProgram*>& programs() const { return in_order_; }
    /// Takes the memory that `enqueue` needs; throws OutOfMemory before anything is enqueued.
    void prepare();
    void enqueue(const BatchInputs& inputs, Phase phase);
    const void* loss() const { return carry_->loss_address(); }
    DType loss_dtype() const { return carry_->loss_dtype(); }

private:
    EngineContext& context_;
    std::vector<std::shared_ptr<BatchProgram>> parts_;
    std::shared_ptr<const MicroCarry> carry_;
    std::vector<std::unique_ptr<PlacedProgram>> programs_;
    std::vector<PlacedProgram*> in_order_;
    std::vector<std::shared_ptr<Instance>> instances_;  ///< one a program
};

}  // namespace lockstep
