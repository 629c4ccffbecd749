#include "lockstep/parallel/reduce/process_reduction.h"

#include "lockstep/ops/internal/control_operations.h"

namespace lockstep {

Stream& ProcessReduction::summing(Emitter& emitter, DeviceIndex device) {
    const bool updates_at_once = updates_each_bucket() && !adds() && !sums_.uses_slots();
    return updates_at_once ? topology_.commit(device) : emitter.reduce(device);
}

MemoryRef ProcessReduction::read_from_peer(Emitter& emitter, Stream& reader, int index, const MemoryRef& ref) {
    if (ref.owner == reader.device() || peer_access(reader.device(), ref.owner)) return ref;
    auto& staging = staging_[{&reader, index}];  // in order on one stream, so every bucket uses the same memory
    if (!staging) staging = Buffer::allocate(reader, reduction_.cut().largest(), "staging");
    const MemoryRef staged = fixed(staging, 0, ref.bytes);
    emitter.copy(reader, ref, staged);
    return staged;
}

std::vector<int> ProcessReduction::emit_sum(Emitter& emitter, DeviceIndex device, const Bucket& bucket,
                                            const Bucket& part, const MemoryRef& target,
                                            const std::vector<int>& ready) {
    std::vector<std::pair<int, int>> shards;
    std::vector<MemoryRef> sums;
    for (const DeviceNode& node : sums_.device_nodes()) {
        if (node.device == first_device && !by_slices()) {  // not combined: all are added here at once
            for (std::size_t i = node.first; i < node.last; ++i) {
                shards.push_back(PartialSums::shards_of(sums_.nodes()[i]));
                sums.push_back(sums_.ref(sums_.nodes()[i], bucket, turn_, part.begin, part.end));
            }
        } else {
            shards.push_back(sums_.shards_of(node));
            sums.push_back(sums_.ref(node, bucket, turn_, part.begin, part.end));
        }
    }
    if (sums.size() == 1 && sums.front().memory == target.memory) return ready;  // the sum is already in its place
    Stream& stream = summing(emitter, device);
    emitter.wait(stream, ready);
    for (std::size_t i = 0; i < sums.size(); ++i)
        sums[i] = read_from_peer(emitter, stream, static_cast<int>(i), sums[i]);
    const TensorMeta flat = reduction_.flat(part);
    const std::vector<TensorMeta> flats(sums.size(), flat);
    emitter.run_flat(stream, device, make_operation(TreeSum{ranges(std::move(shards)), adds(), true}),
                     {flats, std::move(sums)}, {{flat}, {target}});
    return {emitter.record(stream)};
}

std::vector<std::pair<int, int>> OwnReduction::ranges(std::vector<std::pair<int, int>> shards) const {
    for (std::size_t i = 0; i < shards.size(); ++i) shards[i] = {static_cast<int>(i), static_cast<int>(i) + 1};
    return shards;
}

}  // namespace lockstep
