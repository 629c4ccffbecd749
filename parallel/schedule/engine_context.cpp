#include "lockstep/parallel/schedule/engine_context.h"

#include <algorithm>

namespace lockstep {

ControlBlock::ControlBlock(Device device, int shards)
    : memory_(
          Buffer::allocate(Stream::of(device), spacing * static_cast<std::size_t>(first_shard + shards), "control")) {
    Stream& stream = Stream::of(device);
    stream.fill(memory_->data(), 0, memory_->bytes());
    stream.synchronize();
}

void OtherRanks::abort(const std::string& reason) const {
    if (job) job->abort(reason);
    if (agreement) agreement->abort(reason);
    if (hook) hook->abort(reason);
}

int EngineContext::lane_of(int shard) const {
    const auto lane = std::find_if(lanes.begin(), lanes.end(), [&](const Lane& candidate) {
        return candidate.shards.first <= shard && shard < candidate.shards.last;
    });
    return static_cast<int>(lane - lanes.begin());
}

int EngineContext::rank_of(int shard) const {
    for (int rank = 0; rank + 1 < ranks(); ++rank)
        if (held_by(rank, shards).contains(shard)) return rank;
    return ranks() - 1;
}

void EngineContext::pass_on_eager_reports(bool gradients) const {
    if (!eager) return;
    for (const ArenaLayout& layout : store->parameters())
        for (const ArenaSegment& segment : layout.segments) {
            const Tensor& parameter = store->tensor(segment);
            if (const Tensor tensor = gradients ? parameter.grad() : parameter; tensor.defined())
                eager_reports::add(tensor.impl()->storage->reports, eager);
        }
}

std::shared_ptr<Buffer> EngineContext::scratch(Stream& stream, std::size_t bytes) {
    auto& memory = scratches_[&stream];
    if (!memory || memory->bytes() < bytes) memory = Buffer::allocate(stream, bytes, "scratch");
    return memory;
}

std::shared_ptr<Buffer> EngineContext::temporaries(Stream& stream, std::size_t bytes) {
    auto& memory = temporaries_[&stream];
    if (!memory || memory->bytes() < bytes) memory = Buffer::allocate(stream, bytes, "temporaries");
    return memory;
}

std::shared_ptr<Buffer> EngineContext::exchange_staging(std::size_t bytes) {
    if (!exchange_staging_ || exchange_staging_->bytes() < bytes) exchange_staging_ = Buffer::allocate_pinned(bytes);
    return exchange_staging_;
}

const std::vector<std::shared_ptr<Buffer>>& EngineContext::sums_to_add() {
    if (sums_to_add_.empty())
        for (const ArenaLayout& layout : store->parameters())
            sums_to_add_.push_back(Buffer::zeroed(devices[0], layout.bytes(), "gradients of one backward"));
    return sums_to_add_;
}

const std::shared_ptr<Buffer>& EngineContext::slot(int device, int index, int turns) {
    auto& memory = slots_[{device, index}];
    // Buckets leave gaps between parameters alone: what lies there is added up as well, and should be numbers.
    if (!memory)
        memory = Buffer::zeroed(devices[device], (cut->largest() + 255) / 256 * 256 * static_cast<std::size_t>(turns),
                                "partial sums");
    return memory;
}

const std::shared_ptr<Buffer>& EngineContext::received(int index) {
    const auto number = static_cast<std::size_t>(index);
    if (received_.size() <= number) received_.resize(number + 1);
    const auto parts = static_cast<std::size_t>(ranks());
    if (!received_[number])
        received_[number] = Buffer::allocate(
            exchange(), (cut->largest() / parts + 2 * ArenaCut::grain * sizeof(double)) * parts, "slices of others");
    return received_[number];
}

void ConstantCache::refresh(const EngineContext& context, const std::shared_ptr<Storage>& storage) {
    Copies& copies = copies_[storage.get()];
    if (!copies.buffers.empty() && copies.version == storage->version()) return;
    eager_reports::check(storage->reports);  // its values are waited for here
    copies.storage = storage;
    copies.version = storage->version();
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
