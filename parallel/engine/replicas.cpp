#include "lockstep/parallel/engine/replicas.h"

#include <fmt/format.h>

#include <cstring>

#include "lockstep/ops/internal/optimizer_operations.h"
#include "lockstep/parallel/engine/rank_agreement.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

void ReplicaKeeper::refresh() {
    const std::uint64_t version = parts_.memory.store()->version();
    if (version == version_) return;
    mark_stale();  // until all copies are enqueued
    const std::vector<Replica>& replicas = parts_.memory.store()->replicas();
    Stream& home = Stream::of(parts_.topology.devices[0]);  // stream on which members are written
    parts_.topology.commit(first_device).wait(home);
    for (const ComputeLane& lane : parts_.topology.lanes)
        if (lane.device == first_device) lane.stream->wait(home);
    for (const DeviceIndex d : parts_.topology.devices.others()) {
        Stream& stream = parts_.topology.commit(d);
        stream.wait(home);
        const Replica& replica = at(replicas, d);
        for (std::size_t a = 0; a < replica.parameters.size(); ++a)
            stream.copy(replica.parameters[a]->data(), replica.device, replicas[0].parameters[a]->data(),
                        replicas[0].device, replica.parameters[a]->bytes());
        for (std::size_t a = 0; a < replica.buffers.size(); ++a)
            stream.copy(replica.buffers[a]->data(), replica.device, replicas[0].buffers[a]->data(), replicas[0].device,
                        replica.buffers[a]->bytes());
        for (const ComputeLane& lane : parts_.topology.lanes)
            if (lane.device == d) lane.stream->wait(stream);
        home.wait(stream);  // later writes by the user must not overtake the copy
        parts_.topology.commit(first_device).wait(stream);
    }
    version_ = version;
}

void ReplicaKeeper::store_settings(Optimizer& optimizer) {
    const std::uint64_t flags = parts_.memory.store()->trainable_version();
    while (!sent_settings_.empty() && sent_settings_.front().done.done()) sent_settings_.pop_front();
    for (const DeviceIndex d : parts_.reduction.cut().updating_devices()) {
        OptimizerState& state = parts_.reduction.state(optimizer, d);
        if (state.settings_version == optimizer.settings_version() && state.trainable_version == flags) continue;
        Stream& stream = parts_.topology.commit(d);
        stream.wait(Stream::of(parts_.topology.devices[d]));  // new state is zeroed on that stream
        SentSettings& sent = sent_settings_.emplace_back(parts_.topology.devices[d]);
        try {
            send_settings(optimizer, state, d, sent);
        } catch (...) {
            const std::exception_ptr first = std::current_exception();
            try {
                stream.synchronize();  // it may read what `sent` holds
            } catch (...) {            // idle because the device is lost; the first error reports it
            }
            sent_settings_.pop_back();
            std::rethrow_exception(first);
        }
        state.settings_version = optimizer.settings_version();
        state.trainable_version = flags;
    }
}

void ReplicaKeeper::send_settings(const Optimizer& optimizer, OptimizerState& state, DeviceIndex d,
                                  SentSettings& sent) {
    Stream& stream = parts_.topology.commit(d);
    for (std::size_t a = 0; a < state.rows.size(); ++a) {
        const std::vector<std::byte> fresh = optimizer.rows(static_cast<int>(a));
        const auto staged = Buffer::allocate(stream, fresh.size(), "settings");
        // Without `used_on`, with which its destructor would wait for all later work of the stream.
        const auto& pinned = sent.pinned.emplace_back(Buffer::allocate_pinned(fresh.size()));
        std::memcpy(pinned->data(), fresh.data(), fresh.size());
        stream.copy(staged->data(), parts_.topology.devices[d], pinned->data(), Device::host(), fresh.size());
        const TensorMeta rows = bytes_meta(fresh.size());
        Emitter(parts_.topology, parts_.memory, sent.schedule)
            .run_flat(stream, d, make_operation(StoreRows{optimizer.row_bytes()}), {{rows}, {fixed(staged)}},
                      {{rows}, {fixed(state.rows[a])}});
    }
    sent.instance = std::make_unique<Instance>(sent.schedule, std::vector<std::shared_ptr<Buffer>>());
    sent.instance->enqueue(sent.schedule, 0, sent.schedule.size(), Phase::commit);
    stream.record(sent.done);
}

void ReplicaKeeper::hand_back() {
    Stream& root = parts_.topology.commit(first_device);
    for (const ComputeLane& lane : parts_.topology.lanes) lane.stream->wait(root);
}

void ReplicaKeeper::verify() {
    if (parts_.ranks.job()) return require_same_values(parts_);
    const std::vector<Replica>& replicas = parts_.memory.store()->replicas();
    const auto read = [&](DeviceIndex d, const std::shared_ptr<Buffer>& arena) {
        std::vector<char> bytes(arena->bytes());
        Stream& stream = parts_.topology.commit(d);
        stream.wait(Stream::of(parts_.topology.devices[d]));
        stream.copy(bytes.data(), Device::host(), arena->data(), parts_.topology.devices[d], bytes.size());
        stream.synchronize();
        return bytes;
    };
    const auto compare = [&](const std::vector<ArenaLayout>& layouts,
                             std::vector<std::shared_ptr<Buffer>> Replica::*arenas) {
        for (std::size_t a = 0; a < layouts.size(); ++a) {
            const std::vector<char> truth = read(first_device, (replicas[0].*arenas)[a]);
            for (const DeviceIndex d : parts_.topology.devices.others()) {
                const std::vector<char> own = read(d, (at(replicas, d).*arenas)[a]);
                for (const ArenaSegment& segment : layouts[a].segments) {
                    const std::size_t size = size_of(layouts[a].dtype);
                    const auto begin = static_cast<std::size_t>(segment.begin) * size;
                    const auto bytes = static_cast<std::size_t>(segment.end - segment.begin) * size;
                    if (std::memcmp(truth.data() + begin, own.data() + begin, bytes) != 0)
                        throw DeviceError(
                            fmt::format("replica {} on {} differs from replica 0 in {}; parameters must be written "
                                        "only through the wrapper",
                                        d.number(), parts_.topology.devices[d].str(), segment.name));
                }
            }
        }
    };
    compare(parts_.memory.store()->parameters(), &Replica::parameters);
    compare(parts_.memory.store()->buffers(), &Replica::buffers);
}

void ReplicaKeeper::count(const ScheduledProgram& program, bool backward) {
    const BatchProgram& batch = program.batch();
    for (int shard = batch.held.first; shard < batch.held.last; ++shard) {
        const ShardProgram& own = batch.of(shard);
        at(operations_, parts_.topology.replica_of(shard)) += backward ? own.records.size() : own.backward_begin;
    }
}

}  // namespace lockstep
