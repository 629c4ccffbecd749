#include "lockstep/parallel/schedule/microbatch_carry.h"

#include <utility>

namespace lockstep {

namespace {

constexpr std::size_t spacing = 64;  // one cache line each
constexpr const char* tag = "microbatches";

}  // namespace

MicrobatchCarry::MicrobatchCarry(const Topology& topology, const EngineMemory& memory, std::vector<DType> denominators,
                                 DType loss, bool checks_loss)
    : denominators_(std::move(denominators)), loss_(loss), checks_loss_(checks_loss) {
    for (const Device device : topology.devices)
        slots_.push_back(Buffer::zeroed(device, spacing * (3 + denominators_.size()), tag));
    for (const ArenaLayout& layout : memory.store()->buffers())
        buffers_.push_back(Buffer::zeroed(topology.devices[0], layout.bytes(), tag));
}

MemoryRef MicrobatchCarry::slot(DeviceIndex device, std::size_t number, std::size_t bytes) const {
    return fixed(at(slots_, device), spacing * number, bytes);
}

const StepCounters* MicrobatchCarry::step(DeviceIndex device) const {
    return static_cast<const StepCounters*>(at(slots_, device)->data());
}

MemoryRef MicrobatchCarry::in_copy(const EngineMemory& memory, MemoryRef ref) const {
    const auto& arenas = memory.replica(first_device).buffers;
    for (std::size_t a = 0; a < arenas.size(); ++a)
        if (ref.memory == arenas[a]) ref.memory = buffers_[a];
    return ref;
}

}  // namespace lockstep
