#include "lockstep/parallel/engine/engine_parts.h"

#include <exception>
#include <utility>

namespace lockstep {

EngineParts::EngineParts(Topology where, const std::vector<NamedTensor>& tensors, Ranks others, std::size_t kept,
                         const CutOf& cut_of, bool fast)
    : topology(std::move(where)),
      ranks(std::move(others)),
      memory(topology, tensors),
      reduction(topology, memory, cut_of(memory, topology)),
      strategy(make_strategy(topology, memory, reduction, ranks, fast)),
      program_cache_size(kept) {}

void EngineParts::pass_on_eager_reports(bool gradients) const {
    if (!eager) return;
    for (const ArenaLayout& layout : memory.store()->parameters())
        for (const ArenaSegment& segment : layout.segments) {
            const Tensor& parameter = memory.store()->tensor(segment);
            if (const Tensor tensor = gradients ? parameter.grad() : parameter; tensor.defined())
                eager_reports::add(tensor.impl()->storage->reports, eager);
        }
}

void EngineParts::synchronize_all_devices() {
    std::exception_ptr first;
    const auto rest = [&](Stream& stream) {
        try {
            stream.synchronize();
        } catch (...) {
            if (!first) first = std::current_exception();
        }
    };
    for (const ComputeLane& lane : topology.lanes) rest(*lane.stream);
    for (Stream* stream : topology.collective_streams) rest(*stream);
    for (const DeviceIndex d : topology.devices.indices()) {
        rest(topology.reduce(d));
        rest(topology.commit(d));
    }
    memory.health()->failed = false;
    memory.health()->failed_step = -1;
    for (const DeviceIndex d : topology.devices.indices()) {
        const ControlBlock& control = memory.control(d);
        Stream& stream = topology.commit(d);
        stream.fill(control.agreed(), 0, sizeof(StatusWord));
        for (int shard = 0; shard < topology.shards; ++shard) stream.fill(control.shard(shard), 0, sizeof(StatusWord));
        rest(stream);
    }
    if (first) std::rethrow_exception(first);
}

void write_step_state(const EngineParts& parts, DeviceIndex device, const StepCounters& state) {
    Stream& stream = parts.topology.commit(device);
    stream.copy(parts.memory.control(device).step(), parts.topology.devices[device], &state, Device::host(),
                sizeof state);
    stream.synchronize();
}

StepCounters read_step_state(const EngineParts& parts) {
    StepCounters state;
    Stream& stream = parts.topology.commit(first_device);
    stream.copy(&state, Device::host(), parts.memory.control(first_device).step(), parts.topology.devices[0],
                sizeof state);
    stream.synchronize();
    return state;
}

}  // namespace lockstep
