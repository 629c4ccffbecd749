#include "lockstep/parallel/schedule/micro_step.h"

#include "lockstep/parallel/reduce/reducer.h"

namespace lockstep {

namespace {

constexpr std::size_t spacing = 64;  // a cache line each

}  // namespace

MicroCarry::MicroCarry(const EngineContext& context, std::vector<DType> weights, DType loss, bool checks_loss)
    : weights_(std::move(weights)), loss_(loss), checks_loss_(checks_loss) {
    for (const Device device : context.devices)
        slots_.push_back(Buffer::zeroed(device, spacing * (2 + weights_.size()), "micro-steps"));
    for (const ArenaLayout& layout : context.store->buffers())
        buffers_.push_back(Buffer::zeroed(context.devices[0], layout.bytes(), "micro-steps"));
}

PlaceRef MicroCarry::slot(int device, std::size_t number, std::size_t bytes) const {
    return fixed(slots_[static_cast<std::size_t>(device)], spacing * number, bytes);
}

const StepState* MicroCarry::step(int device) const {
    return static_cast<const StepState*>(slots_[static_cast<std::size_t>(device)]->data());
}

const void* MicroCarry::loss_address() const {
    const PlaceRef place = loss();
    return static_cast<const char*>(place.memory->data()) + place.offset;
}

PlaceRef MicroCarry::in_copy(const EngineContext& context, PlaceRef place) const {
    const auto& arenas = context.store->replicas()[0].buffers;
    for (std::size_t a = 0; a < arenas.size(); ++a)
        if (place.memory == arenas[a]) place.memory = buffers_[a];
    return place;
}

}  // namespace lockstep
