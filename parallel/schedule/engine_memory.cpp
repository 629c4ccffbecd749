#include "lockstep/parallel/schedule/engine_memory.h"

namespace lockstep {

namespace {

std::shared_ptr<Buffer> at_least(std::shared_ptr<Buffer>& memory, Stream& stream, std::size_t bytes, const char* tag) {
    if (!memory || memory->bytes() < bytes) memory = Buffer::allocate(stream, bytes, tag);
    return memory;
}

}  // namespace

EngineMemory::EngineMemory(const Topology& topology, const std::vector<NamedTensor>& tensors)
    : store_(std::make_shared<ParameterStore>(tensors,
                                              std::vector<Device>(topology.devices.begin(), topology.devices.end()))) {
    store_->register_self(store_);
    for (const Device device : topology.devices) control_.emplace_back(device, topology.shards);
}

std::shared_ptr<Buffer> EngineMemory::scratch(Stream& stream, std::size_t bytes) {
    return at_least(scratches_[&stream], stream, bytes, "scratch");
}

std::shared_ptr<Buffer> EngineMemory::temporaries(Stream& stream, std::size_t bytes) {
    return at_least(temporaries_[&stream], stream, bytes, "temporaries");
}

std::shared_ptr<Buffer> EngineMemory::casts(Stream& stream, int arena, DType dtype, int set) {
    const auto bytes = static_cast<std::size_t>(layout(arena).elements) * size_of(dtype);
    return at_least(casts_[{&stream, arena, dtype, set}], stream, bytes, "casts");
}

}  // namespace lockstep
