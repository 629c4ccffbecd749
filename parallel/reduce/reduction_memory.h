// Memory in which gradients are reduced, and the partition of the arenas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/ops/optimizer.h"
#include "lockstep/parallel/reduce/arena_partition.h"
#include "lockstep/parallel/schedule/engine_memory.h"

namespace lockstep {

class ReductionMemory {
public:
    ReductionMemory(const Topology& topology, const EngineMemory& memory, ArenaPartition cut)
        : topology_(topology), memory_(memory), cut_(std::move(cut)) {}

    const ArenaPartition& cut() const { return cut_; }
    /// The state of `optimizer` on a device that updates, created on first use.
    OptimizerState& state(Optimizer& optimizer, DeviceIndex device) const {
        return optimizer.state_on(topology_.devices[device], cut_.state_elements(device));
    }

    /// Elements of `part` of an arena, from element `first` of `memory` on.
    MemoryRef elements(const std::shared_ptr<Buffer>& memory, const Bucket& part, std::int64_t first) const;
    /// The same in an arena of replica `device`.
    MemoryRef gradients(DeviceIndex device, const Bucket& part) const;
    MemoryRef parameters(DeviceIndex device, const Bucket& part) const;
    /// The same in the arenas on device 0 in which a backward is summed before it is added to the gradient arena.
    MemoryRef separate_root_sums(const Bucket& part);
    const std::vector<std::shared_ptr<Buffer>>& separate_root_sums();
    /// The meta of `part` as a vector.
    TensorMeta flat(const Bucket& part) const;

    /// Memory on `device` for `turns` buckets of any size, each rounded up to 256 bytes; allocated on first use.
    const std::shared_ptr<Buffer>& slot(DeviceIndex device, int index, int turns);
    /// Memory for the slices of a bucket that other processes send to this one, one piece per process.
    const std::shared_ptr<Buffer>& received(int index);

private:
    const Topology& topology_;
    const EngineMemory& memory_;
    ArenaPartition cut_;
    std::vector<std::shared_ptr<Buffer>> received_, separate_root_sums_;
    std::map<std::pair<DeviceIndex, int>, std::shared_ptr<Buffer>> slots_;
};

}  // namespace lockstep
