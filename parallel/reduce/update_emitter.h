// Updates of summed buckets, and the copies of the new weights to all replicas.
#pragma once

#include <vector>

#include "lockstep/parallel/reduce/gradient_gate.h"
#include "lockstep/parallel/reduce/reduction_memory.h"
#include "lockstep/parallel/schedule/emitter.h"

namespace lockstep {

/// By root (device 0 updates and broadcasts) or slice-wise (every device updates its slice, and all gather them),
/// depending on the partition.
class UpdateEmitter {
public:
    UpdateEmitter(ReductionMemory& reduction, Optimizer& optimizer) : reduction_(reduction), optimizer_(optimizer) {}

    bool by_slices() const { return reduction_.cut().updating() > 1; }
    /// Updates a bucket on the devices that have its sums, and distributes the weights.
    void emit_bucket(Emitter& emitter, const Bucket& bucket) const;
    /// Same for all buckets of gradients in the arena of device 0 (PyTorch's manual step).
    void emit_from_root(Emitter& emitter, const std::vector<Bucket>& buckets) const;
    /// The update of one device's part of a bucket.
    void emit_part(Emitter& emitter, DeviceIndex device, const Bucket& part) const;
    /// Copies every device's updated slice to the others; `updated`: by device, the event after its update.
    void emit_gathering(Emitter& emitter, const Bucket& bucket, const std::vector<int>& updated) const;
    /// The gate and the updates of all buckets, once they are summed.
    void emit_gate(Emitter& emitter, const GateRules& rules, const std::vector<Bucket>& buckets) const;
    /// Counts the updates of every parameter of `buckets`.
    void emit_counts(Emitter& emitter, const std::vector<Bucket>& buckets) const;

private:
    /// Copies slices of gradients from device 0 to the devices that update them.
    void emit_slices_of_root(Emitter& emitter, const Bucket& bucket) const;
    void emit_broadcast(Emitter& emitter, const Bucket& bucket) const;

    ReductionMemory& reduction_;
    Optimizer& optimizer_;
};

}  // namespace lockstep
