// Data that each microbatch of a step passes to the next. It is separate from the model's state, so that a refused step
// changes nothing.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/parallel/schedule/engine_memory.h"

namespace lockstep {

class MicrobatchCarry {
public:
    /// `denominators`, `loss`: dtypes of the denominators of the loss and of its value. `checks_loss`: a non-finite
    /// loss is reported.
    MicrobatchCarry(const Topology& topology, const EngineMemory& memory, std::vector<DType> denominators, DType loss,
                    bool checks_loss);

    /// StepCounters for this microbatch's random numbers.
    MemoryRef state(DeviceIndex device) const { return slot(device, 0, sizeof(StepCounters)); }
    const StepCounters* step(DeviceIndex device) const;
    /// Denominator `number` of the loss, summed over shards and microbatches.
    MemoryRef denominator(DeviceIndex device, std::size_t number) const {
        return slot(device, 1 + number, size_of(denominators_[number]));
    }
    /// The loss so far, on the first device.
    MemoryRef loss() const { return slot(first_device, 1 + denominators_.size(), size_of(loss_)); }
    /// ShardProgram::squares so far, on the first device.
    MemoryRef squares() const { return slot(first_device, 2 + denominators_.size(), sizeof(double)); }
    DType loss_dtype() const { return loss_; }
    bool checks_loss() const { return checks_loss_; }
    /// If `ref` is in a buffer of replica 0: the same bytes of the copy that the microbatches update; otherwise `ref`.
    MemoryRef in_copy(const EngineMemory& memory, MemoryRef ref) const;

private:
    MemoryRef slot(DeviceIndex device, std::size_t number, std::size_t bytes) const;

    std::vector<DType> denominators_;
    DType loss_;
    bool checks_loss_;
    std::vector<std::shared_ptr<Buffer>> slots_;  ///< by device
    std::vector<std::shared_ptr<Buffer>> buffers_;
};

/// Position of a microbatch's program in a step.
struct Microbatch {
    std::shared_ptr<const MicrobatchCarry> carry;
    bool first = true, last = true;  ///< first and last of its kind in the step
    int present = 0;                 ///< shards that have rows in some microbatch
};

}  // namespace lockstep
