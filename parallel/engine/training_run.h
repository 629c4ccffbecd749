// The calls of an engine: steps, forwards, and join.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/parallel/comm/join_options.h"
#include "lockstep/parallel/engine/join.h"
#include "lockstep/parallel/engine/manual_step.h"
#include "lockstep/parallel/engine/program_cache.h"

namespace lockstep {

/// Settings of a step other than its optimizer and its batch.
struct StepPlan {
    int accumulation_steps = 1;
    GateRules gate = {};
};

/// The gathered outputs of a forward, and the structure in which the model returned them.
struct GatheredOutputs {
    std::vector<Tensor> outputs;
    std::shared_ptr<const void> prototype;
};

class TrainingRun {
public:
    /// `stops_at_nan`: a step with a non-finite loss is refused. `broadcasts_buffers`: before every step and forward of
    /// several processes.
    TrainingRun(std::unique_ptr<EngineParts> parts, bool stops_at_nan, bool broadcasts_buffers);

    EngineParts& parts() { return *parts_; }
    const EngineParts& parts() const { return *parts_; }
    InFlight& in_flight() { return in_flight_; }
    ReplicaKeeper& replicas() { return replicas_; }
    ManualStep& manual() { return manual_; }
    std::uint64_t traces() const { return cache_.traces(); }

    /// Sets `outcome` to that of the step.
    void step(Optimizer& optimizer, const ModelCall& call, const std::vector<BatchInput>& inputs, const StepPlan& plan,
              const std::shared_ptr<StepOutcome>& outcome);
    GatheredOutputs forward(const ModelCall& call, const std::vector<BatchInput>& inputs, Device output_device);

    /// Waits for all steps; throws their errors, and those of eager calls.
    void synchronize();

    void begin_join(const JoinOptions& options);
    /// This rank has no batch left: shadows the others until none has any, then copies the model of the rank that left
    /// last.
    void end_join(const std::function<ModelCall(std::size_t tensors)>& forward_of);
    bool in_join() const { return manual_.join != nullptr; }
    void abort_join() noexcept { manual_.join.reset(); }

private:
    struct PreparedStep;
    PreparedStep prepare(const ModelCall& call, const BatchInputs& batch, const StepPlan& plan,
                         const ReductionSpec& spec);
    /// The program for a request; if ranks may use different parameters, scheduled for those that any of them uses.
    /// Calls `meet` once the model can no longer throw, before the ranks agree.
    template <class Meet>
    ScheduledProgram& program_for(const ProgramRequest& request, const BatchCut& cut, const ReductionSpec& spec,
                                  Meet&& meet);
    ScheduledProgram& scheduled_together(const std::shared_ptr<const BatchProgram>& batch, UsedParameters used,
                                         const ReductionSpec& spec);
    void enqueue_forward(ScheduledProgram& program, Instance& instance, BatchInputs& batch, int slot);
    /// One forward and backward without gradients from this rank.
    void shadow_others(const Join::Shadow& shadow, GradientSync sync);
    ScheduledProgram& program_for(const Join::Shadow& shadow, GradientSync sync);
    /// The program and inputs with which this rank shadows the others, if it has borrowed a batch.
    Join::Shadow shadow_of(const std::vector<Tensor>& lent, const ModelCall& call);
    /// Inputs may be results of eager calls whose errors are not known yet; the engine also checks those.
    void note_eager_reports(const std::vector<BatchInput>& inputs);
    void bring_buffers();

    std::unique_ptr<EngineParts> parts_;
    InFlight in_flight_;
    ProgramCache cache_;
    ReplicaKeeper replicas_;
    ManualStep manual_;
    bool broadcasts_buffers_;
};

}  // namespace lockstep
