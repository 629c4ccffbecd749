#include "lockstep/parallel/engine/replicas.h"

#include <fmt/format.h>

#include <cstring>

#include "lockstep/ops/internal/update_operations.h"
#include "lockstep/parallel/engine/rank_agreement.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

void ReplicaKeeper::refresh() {
    if (context_.store->version() == version_) return;
    mark_current();
    const std::vector<Replica>& replicas = context_.store->replicas();
    Stream& home = Stream::of(context_.devices[0]);  // where members are written
    context_.commit(0).wait(home);
    for (std::size_t lane = 0; lane < context_.lanes.size(); ++lane)
        if (context_.lanes[lane].device == 0) context_.compute(static_cast<int>(lane)).wait(home);
    for (int d = 1; d < context_.devices.size(); ++d) {
        Stream& stream = context_.commit(d);
        stream.wait(home);
        const Replica& replica = replicas[static_cast<std::size_t>(d)];
        for (std::size_t a = 0; a < replica.parameters.size(); ++a)
            stream.copy(replica.parameters[a]->data(), replica.device, replicas[0].parameters[a]->data(),
                        replicas[0].device, replica.parameters[a]->bytes());
        for (std::size_t a = 0; a < replica.buffers.size(); ++a)
            stream.copy(replica.buffers[a]->data(), replica.device, replicas[0].buffers[a]->data(), replicas[0].device,
                        replica.buffers[a]->bytes());
        for (std::size_t lane = 0; lane < context_.lanes.size(); ++lane)
            if (context_.lanes[lane].device == d) context_.compute(static_cast<int>(lane)).wait(stream);
        home.wait(stream);  // the next write from outside must not overtake the copy
        context_.commit(0).wait(stream);
    }
}

void ReplicaKeeper::store_settings(Optimizer& optimizer) {
    const std::uint64_t flags = context_.store->trainable_version();
    while (!sent_settings_.empty() && sent_settings_.front().done.done()) sent_settings_.pop_front();
    for (int d = 0; d < context_.cut->updating(); ++d) {
        OptimizerState& state = context_.state(optimizer, d);
        if (state.settings_version == optimizer.settings_version() && state.trainable_version == flags) continue;
        Stream& stream = context_.commit(d);
        stream.wait(Stream::of(context_.devices[d]));  // new state is zeroed there
        SentSettings& sent = sent_settings_.emplace_back(context_.devices[d]);
        for (std::size_t a = 0; a < state.rows.size(); ++a) {
            const std::vector<std::byte> fresh = optimizer.rows(static_cast<int>(a));
            const auto staged = Buffer::allocate(stream, fresh.size(), "settings");
            const auto pinned = Buffer::allocate_pinned(fresh.size());
            std::memcpy(pinned->data(), fresh.data(), fresh.size());
            stream.copy(staged->data(), context_.devices[d], pinned->data(), Device::host(), fresh.size());
            pinned->used_on(stream);
            const TensorMeta rows = TensorMeta::contiguous(DType::u8, {static_cast<std::int64_t>(fresh.size())});
            sent.schedule.run(
                stream, flat_task(context_, stream, d, make_operation(StoreRows{optimizer.row_bytes()}), {rows},
                                  {fixed(staged, 0, fresh.size())}, {rows}, {fixed(state.rows[a], 0, fresh.size())}));
        }
        sent.instance = std::make_unique<Instance>(sent.schedule, std::vector<std::shared_ptr<Buffer>>());
        sent.instance->enqueue(sent.schedule, 0, sent.schedule.size(), Phase::commit);
        stream.record(sent.done);
        state.settings_version = optimizer.settings_version();
        state.trainable_version = flags;
    }
}

void ReplicaKeeper::hand_back() {
    Stream& root = context_.commit(0);
    for (std::size_t lane = 0; lane < context_.lanes.size(); ++lane)
        context_.compute(static_cast<int>(lane)).wait(root);
}

void ReplicaKeeper::verify() {
    if (context_.job) return require_same_values(context_);
    const std::vector<Replica>& replicas = context_.store->replicas();
    const auto read = [&](int d, const std::shared_ptr<Buffer>& arena) {
        std::vector<char> bytes(arena->bytes());
        Stream& stream = context_.commit(d);
        stream.wait(Stream::of(context_.devices[d]));
        stream.copy(bytes.data(), Device::host(), arena->data(), context_.devices[d], bytes.size());
        stream.synchronize();
        return bytes;
    };
    const auto compare = [&](const std::vector<ArenaLayout>& layouts,
                             std::vector<std::shared_ptr<Buffer>> Replica::*arenas) {
        for (std::size_t a = 0; a < layouts.size(); ++a) {
            const std::vector<char> truth = read(0, (replicas[0].*arenas)[a]);
            for (int d = 1; d < context_.devices.size(); ++d) {
                const std::vector<char> own = read(d, (replicas[static_cast<std::size_t>(d)].*arenas)[a]);
                for (const ArenaSegment& segment : layouts[a].segments) {
                    const std::size_t size = size_of(layouts[a].dtype);
                    const auto begin = static_cast<std::size_t>(segment.begin) * size;
                    const auto bytes = static_cast<std::size_t>(segment.end - segment.begin) * size;
                    if (std::memcmp(truth.data() + begin, own.data() + begin, bytes) != 0)
                        throw DeviceError(
                            fmt::format("replica {} on {} differs from replica 0 in {}; write "
                                        "parameters through the wrapper only",
                                        d, context_.devices[d].str(), segment.name));
                }
            }
        }
    };
    compare(context_.store->parameters(), &Replica::parameters);
    compare(context_.store->buffers(), &Replica::buffers);
}

void ReplicaKeeper::count(const PlacedProgram& program, bool backward) {
    const BatchProgram& batch = program.batch();
    for (int shard = batch.held.first; shard < batch.held.last; ++shard) {
        const ShardProgram& own = batch.of(shard);
        operations_[static_cast<std::size_t>(program.memory().replica_of(shard))] +=
            backward ? own.records.size() : own.backward_begin;
    }
}

}  // namespace lockstep
