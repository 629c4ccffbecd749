#include "lockstep/parallel/internal/engine_context.h"

#include <algorithm>

namespace lockstep {

ControlBlock::ControlBlock(Device device, int shards)
    : memory_(Buffer::allocate(Stream::of(device), spacing * static_cast<std::size_t>(2 + shards), "control")) {
    Stream& stream = Stream::of(device);
    stream.fill(memory_->data(), 0, memory_->bytes());
    stream.synchronize();
}

int EngineContext::lane_of(int shard) const {
    const auto lane = std::find_if(lanes.begin(), lanes.end(), [&](const Lane& candidate) {
        return candidate.shards.first <= shard && shard < candidate.shards.last;
    });
    return static_cast<int>(lane - lanes.begin());
}

std::shared_ptr<Buffer> EngineContext::scratch(Stream& stream, std::size_t bytes) {
    auto& memory = scratches[&stream];
    if (!memory || memory->bytes() < bytes) memory = Buffer::allocate(stream, bytes, "scratch");
    return memory;
}

const std::vector<std::shared_ptr<Buffer>>& EngineContext::partial(int device, int index) {
    auto& of_device = partials[static_cast<std::size_t>(device)];
    while (static_cast<int>(of_device.size()) <= index) {
        auto& arenas = of_device.emplace_back();
        Stream& stream = Stream::of(devices[device]);
        for (const ArenaLayout& layout : store->parameters()) {
            arenas.push_back(Buffer::allocate(stream, layout.bytes(), "partial gradients"));
            stream.fill(arenas.back()->data(), 0, layout.bytes());
        }
        stream.synchronize();
    }
    return of_device[static_cast<std::size_t>(index)];
}

void ConstantCache::refresh(const EngineContext& context, const std::shared_ptr<Storage>& storage) {
    Copies& copies = copies_[storage.get()];
    if (!copies.buffers.empty() && copies.version == storage->version) return;
    copies.storage = storage;
    copies.version = storage->version;
    const Device source = storage->buffer->device();
    if (!source.is_host()) Stream::of(source).synchronize();
    for (int d = 0; d < context.devices.size(); ++d) {
        Stream& stream = Stream::of(context.devices[d]);
        if (static_cast<int>(copies.buffers.size()) <= d)
            copies.buffers.push_back(Buffer::allocate(stream, storage->buffer->bytes(), "constants"));
        // Programs that run now may still read the old values.
        for (std::size_t lane = 0; lane < context.lanes.size(); ++lane)
            if (context.lanes[lane].device == d) stream.wait(context.compute(static_cast<int>(lane)));
        stream.copy(copies.buffers[static_cast<std::size_t>(d)]->data(), context.devices[d], storage->buffer->data(),
                    source, storage->buffer->bytes());
        stream.synchronize();
    }
}

const std::shared_ptr<Buffer>& ConstantCache::on(const std::shared_ptr<Storage>& storage, int device) const {
    return copies_.at(storage.get()).buffers[static_cast<std::size_t>(device)];
}

}  // namespace lockstep
