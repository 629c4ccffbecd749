// Memory that all programs of one engine share: replicas, control words, scratch memory of streams.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "lockstep/ops/arena.h"
#include "lockstep/parallel/schedule/control_block.h"
#include "lockstep/parallel/schedule/health.h"
#include "lockstep/parallel/schedule/topology.h"

namespace lockstep {

class EngineMemory {
public:
    /// Moves a model's tensors into replicas on the devices.
    EngineMemory(const Topology& topology, const std::vector<NamedTensor>& tensors);

    const std::shared_ptr<ParameterStore>& store() const { return store_; }
    const Replica& replica(DeviceIndex device) const { return at(store_->replicas(), device); }
    const ArenaLayout& layout(int arena) const { return store_->parameters()[static_cast<std::size_t>(arena)]; }
    const ControlBlock& control(DeviceIndex device) const { return at(control_, device); }
    const std::shared_ptr<Health>& health() const { return health_; }

    /// Scratch memory of at least `bytes` bytes that all tasks of `stream` share.
    std::shared_ptr<Buffer> scratch(Stream& stream, std::size_t bytes);
    /// Memory of at least `bytes` bytes in which a task of `stream` leaves values for the following tasks.
    std::shared_ptr<Buffer> temporaries(Stream& stream, std::size_t bytes);
    /// Memory for the parameters of an arena in another dtype or order, at the same offsets in elements, on the device
    /// of `stream`, which fills it. `set`: 1 for a last shard that needs them in another order than the full shards.
    std::shared_ptr<Buffer> casts(Stream& stream, int arena, DType dtype, int set);

private:
    std::shared_ptr<ParameterStore> store_;
    std::vector<ControlBlock> control_;  ///< one per device
    std::shared_ptr<Health> health_ = std::make_shared<Health>();
    std::map<Stream*, std::shared_ptr<Buffer>> scratches_, temporaries_;
    std::map<std::tuple<Stream*, int, DType, int>, std::shared_ptr<Buffer>> casts_;
};

}  // namespace lockstep
