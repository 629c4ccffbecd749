// Micro-steps: a step that takes its batch in parts, one after another, and updates once. Every micro-step has a
// program of its own; what they hand on to each other lies beside the lasting state, so that a step that is refused has
// changed none of it.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/parallel/schedule/engine_context.h"
#include "lockstep/parallel/schedule/schedule.h"

namespace lockstep {

/// What the micro-steps of one step hand on, in device memory.
class MicroCarry {
public:
    /// `weights`, `loss`: dtypes of the weights of the loss and of its value. `checks_loss`: a loss that is not finite
    /// is reported.
    MicroCarry(const EngineContext& context, std::vector<DType> weights, DType loss, bool checks_loss);

    /// StepState as this micro-step's random numbers see it.
    PlaceRef state(int device) const { return slot(device, 0, sizeof(StepState)); }
    const StepState* step(int device) const;
    /// Weight `number` of the loss, summed over shards and micro-steps.
    PlaceRef weight(int device, std::size_t number) const {
        return slot(device, 1 + number, size_of(weights_[number]));
    }
    const std::vector<DType>& weights() const { return weights_; }
    /// The loss so far, on the first device.
    PlaceRef loss() const { return slot(0, 1 + weights_.size(), size_of(loss_)); }
    DType loss_dtype() const { return loss_; }
    const void* loss_address() const;
    bool checks_loss() const { return checks_loss_; }
    /// Copies of replica 0's buffer arenas, which the micro-steps bring forward.
    const std::vector<std::shared_ptr<Buffer>>& buffers() const { return buffers_; }
    /// `place`, in the copy where it lies in a buffer of replica 0.
    PlaceRef in_copy(const EngineContext& context, PlaceRef place) const;

private:
    PlaceRef slot(int device, std::size_t number, std::size_t bytes) const;

    std::vector<DType> weights_;
    DType loss_;
    bool checks_loss_;
    std::vector<std::shared_ptr<Buffer>> slots_;  ///< by device
    std::vector<std::shared_ptr<Buffer>> buffers_;
};

/// Which part of a step a program is. By default: the whole step.
struct MicroStep {
    std::shared_ptr<const MicroCarry> carry;  ///< null: the step has no micro-steps
    bool weighs = false;                      ///< sums the weights of the loss, before the first micro-step
    bool first = true, last = true;           ///< of its kind in the step
    int present = 0;                          ///< shards that have rows in some micro-step
};

}  // namespace lockstep
