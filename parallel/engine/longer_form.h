// PyTorch's longer form: forward with gathered outputs, backward(), sgd.step().
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/parallel/engine/batch_inputs.h"
#include "lockstep/parallel/engine/in_flight.h"
#include "lockstep/parallel/engine/recently_used.h"
#include "lockstep/parallel/engine/replicas.h"

namespace lockstep {

class Join;

class LongerForm {
public:
    LongerForm(EngineContext& context, InFlight& in_flight, ReplicaKeeper& replicas);
    ~LongerForm();
    LongerForm(const LongerForm&) = delete;
    LongerForm& operator=(const LongerForm&) = delete;

    /// Outputs of a program on `output_device`, on the tape where the program has a backward, whose gradients are
    /// multiplied by `scale`.
    std::vector<Tensor> gather(PlacedProgram& program, std::shared_ptr<Instance> instance,
                               const std::vector<BatchInput>& inputs, const std::vector<bool>& wants, GradientSync sync,
                               double scale, Device output_device);
    /// The backward of a forward whose outputs nobody has used: it only brings together what other ranks have.
    void go_back_without_gradients(PlacedProgram& program, Instance& instance, GradientSync sync);

    /// Whether backwards of the forwards to come are brought together with those of other processes.
    void set_sync(bool on) { syncs_ = on; }
    bool syncs() const { return syncs_; }
    /// What the backward of a forward made now has to bring together.
    GradientSync sync() const;
    /// Adds the parameters whose gradients are this process's alone.
    void add_own(UsedParameters& used) const;

    std::unique_ptr<Join> join;  ///< while ranks may run out of batches; null otherwise

    /// A step uses the gradient arenas itself: parameters lose the gradients that lie there.
    void forget_gradients();
    /// Those that have been brought together already: other ranks have used them, too.
    void forget_shared_gradients() {
        if (!own_gradients_) forget_gradients();
    }

private:
    std::vector<Tensor> backward(PlacedProgram& program, Instance& instance, const std::vector<Tensor>& gradients,
                                 const std::vector<Device>& input_devices, GradientSync sync);
    void update(Optimizer& optimizer);
    /// The place of a segment's gradient in device 0's arena.
    Tensor arena_gradient(int arena, const ArenaSegment& segment) const;
    /// Moves gradients that lie elsewhere (eager operations made them, or the user) into the arena.
    void take_in_gradients();
    /// Zeroes the arena where a parameter has no gradient: the coming backward adds.
    void clear_missing(const PlacedProgram& program);
    bool has_gradient(int arena, int segment) const;
    /// One tensor of the operand that `of` finds in the program of each shard of this process, on `device`.
    Tensor joined(const PlacedProgram& program, const Instance& instance,
                  const std::function<const Operand&(const ShardProgram&)>& of, Device device);

    EngineContext& context_;
    InFlight& in_flight_;
    ReplicaKeeper& replicas_;
    bool syncs_ = true;
    bool own_gradients_ = false;                    ///< the arena holds gradients that are this process's alone
    std::set<std::pair<int, int>> own_parameters_;  ///< which these are, where ranks may use different ones
    bool gradients_given_ = false;                  ///< some parameter's gradient may lie in the arena
    struct PlacedUpdate {
        Schedule schedule = {};
        std::unique_ptr<Instance> instance = {};
        std::uint64_t optimizer = 0;  ///< its id
    };
    /// Kept like programs; without an instance when it is new.
    PlacedUpdate& update_for(const Optimizer& optimizer, std::string_view with_gradient);
    RecentlyUsed<PlacedUpdate> updates_;
    /// Tapes may outlive the wrapper; they look here first.
    std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace lockstep
