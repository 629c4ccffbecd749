// PyTorch's manual step: forward with gathered outputs, backward(), sgd.step().
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "lockstep/parallel/engine/batch_inputs.h"
#include "lockstep/parallel/engine/manual_update.h"

namespace lockstep {

class Join;

class ManualStep {
public:
    ManualStep(EngineParts& parts, InFlight& in_flight, ReplicaKeeper& replicas);
    ~ManualStep();
    ManualStep(const ManualStep&) = delete;
    ManualStep& operator=(const ManualStep&) = delete;

    /// Memory on `output_device` for the outputs of a program, taken before its forward is enqueued.
    static std::vector<Tensor> room_for_outputs(const ScheduledProgram& program, Device output_device);
    /// Fills `outputs` with those of a program. If the program has a backward, they are in the autograd graph, and
    /// their gradients are multiplied by `scale`.
    void gather(std::vector<Tensor>& outputs, ScheduledProgram& program, std::shared_ptr<Instance> instance,
                const std::vector<BatchInput>& inputs, const std::vector<bool>& wants, GradientSync sync, double scale);
    /// The backward of a forward with unused outputs: takes part in the reduction of the other ranks' gradients.
    void backward_without_gradients(ScheduledProgram& program, Instance& instance, GradientSync sync);

    /// Whether later backward passes synchronize gradients with those of other processes.
    void set_sync(bool on) { syncs_ = on; }
    bool syncs() const { return syncs_; }
    /// The reduction in the backward of a forward that runs now.
    GradientSync sync() const;
    /// Adds the parameters whose gradients are local to this process.
    void add_own(UsedParameters& used) const;

    std::unique_ptr<Join> join;  ///< while ranks may run out of batches; null otherwise

    /// A step uses the gradient arenas: parameters lose the gradients in them.
    void forget_gradients();
    /// As above, unless the gradients are local to this process.
    void forget_shared_gradients() {
        if (!own_gradients_) forget_gradients();
    }

private:
    std::vector<Tensor> backward(ScheduledProgram& program, Instance& instance, const std::vector<Tensor>& gradients,
                                 const std::vector<Device>& input_devices, GradientSync sync);
    /// Enqueues copies of the outputs' gradients to the memory from which the program reads them.
    void scatter(const ScheduledProgram& program, const Instance& instance, const std::vector<Tensor>& gradients);
    using OperandOf = std::function<const Operand&(const ShardProgram&)>;
    /// Memory on `device` for the operand that `of` selects in each shard's program, of all shards of this process.
    static Tensor room(const ScheduledProgram& program, const OperandOf& of, Device device);
    /// Joins those operands in `result`. The program has committed, so a failing call is retried once.
    void join_shards(const Tensor& result, const ScheduledProgram& program, const Instance& instance,
                     const OperandOf& of);

    EngineParts& parts_;
    InFlight& in_flight_;
    ReplicaKeeper& replicas_;
    ParameterGradients gradients_;
    ManualUpdate update_;
    bool syncs_ = true;
    bool own_gradients_ = false;            ///< whether the arena has gradients that are local to this process
    std::set<ParameterId> own_parameters_;  ///< the parameters of these gradients, if ranks may use different ones
    /// Autograd graphs may outlive the wrapper, and check this first.
    std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace lockstep
