#include "lockstep/parallel/schedule/constant_cache.h"

#include "lockstep/runtime/internal/eager.h"

namespace lockstep {

void ConstantCache::refresh(const Topology& topology, const std::shared_ptr<Storage>& storage) {
    Copies& copies = copies_[storage.get()];
    const std::uint64_t version = storage->version();
    if (copies.version == version) return;
    eager_reports::check(storage->reports);  // this waits for its values
    copies.storage = storage;
    copies.version.reset();
    const Device source = storage->buffer->device();
    if (!source.is_host()) Stream::of(source).synchronize();
    for (const DeviceIndex d : topology.devices.indices()) {
        Stream& stream = Stream::of(topology.devices[d]);
        if (static_cast<int>(copies.buffers.size()) <= d.number())
            copies.buffers.push_back(Buffer::allocate(stream, storage->buffer->bytes(), "constants"));
        // Programs that run now may still read the old values.
        for (const ComputeLane& lane : topology.lanes)
            if (lane.device == d) stream.wait(*lane.stream);
        stream.copy(at(copies.buffers, d)->data(), topology.devices[d], storage->buffer->data(), source,
                    storage->buffer->bytes());
        stream.synchronize();
    }
    copies.version = version;
}

const std::shared_ptr<Buffer>& ConstantCache::on(const std::shared_ptr<Storage>& storage, DeviceIndex device) const {
    return at(copies_.at(storage.get()).buffers, device);
}

}  // namespace lockstep
