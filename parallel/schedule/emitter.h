// Appends commands to a schedule, with the required streams and memory.
#pragma once

#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/parallel/schedule/engine_memory.h"
#include "lockstep/parallel/schedule/schedule.h"
#include "lockstep/parallel/schedule/topology.h"

namespace lockstep {

/// Operands given as flat ranges of memory.
struct FlatOperands {
    std::vector<TensorMeta> metas = {};
    std::vector<MemoryRef> refs = {};
};

class Emitter {
public:
    Emitter(const Topology& topology, EngineMemory& memory, Schedule& schedule)
        : topology_(topology), memory_(memory), schedule_(schedule) {}

    const Topology& topology() const { return topology_; }
    EngineMemory& memory() const { return memory_; }
    Schedule& schedule() const { return schedule_; }

    void run(Stream& stream, TaskSpec task) { schedule_.run(stream, std::move(task)); }
    /// A task on flat memory of replica `device`, with scratch memory of `stream`.
    TaskSpec flat_task(Stream& stream, DeviceIndex device, std::shared_ptr<const Operation> operation, FlatOperands in,
                       FlatOperands out) const;
    void run_flat(Stream& stream, DeviceIndex device, std::shared_ptr<const Operation> operation, FlatOperands in,
                  FlatOperands out) {
        schedule_.run(stream, flat_task(stream, device, std::move(operation), std::move(in), std::move(out)));
    }
    /// Copies all of `from`.
    void copy(Stream& stream, const MemoryRef& from, const MemoryRef& to) {
        schedule_.copy(stream, {from, to, from.bytes});
    }
    int record(Stream& stream) { return schedule_.record(stream); }
    void wait(Stream& stream, int event) { schedule_.wait(stream, event); }
    void wait(Stream& stream, const std::vector<int>& events) {
        for (const int event : events) schedule_.wait(stream, event);
    }
    /// `stream` waits for everything enqueued on `other` so far.
    void wait(Stream& stream, Stream& other) { schedule_.wait(stream, schedule_.record(other)); }
    /// `ref` if a kernel on `reader` may read it, otherwise a staging copy of it on the reader's device, enqueued here.
    MemoryRef readable_on(Stream& reader, const MemoryRef& ref);

    /// The stream on which the device sums gradients, which is added to `reducing()`.
    Stream& reduce(DeviceIndex device) {
        reducing_.insert(device);
        return topology_.reduce(device);
    }
    const std::set<DeviceIndex>& reducing() const { return reducing_; }

private:
    const Topology& topology_;
    EngineMemory& memory_;
    Schedule& schedule_;
    std::set<DeviceIndex> reducing_;
};

/// The meta of `bytes` bytes of memory of any type.
TensorMeta bytes_meta(std::size_t bytes);

}  // namespace lockstep
