#include "lockstep/parallel/reduce/update_emitter.h"

#include <set>

#include "lockstep/ops/internal/optimizer_operations.h"
#include "lockstep/parallel/reduce/update_tasks.h"

namespace lockstep {

void UpdateEmitter::emit_part(Emitter& emitter, DeviceIndex device, const Bucket& part) const {
    if (part.elements() == 0) return;
    emit_update(emitter, device, optimizer_, part, update_memory(reduction_, optimizer_, device, part));
}

void UpdateEmitter::emit_broadcast(Emitter& emitter, const Bucket& bucket) const {
    const Topology& topology = emitter.topology();
    if (topology.devices.size() == 1) return;
    const int updated = emitter.record(topology.commit(first_device));
    for (const DeviceIndex d : topology.devices.others()) {
        emitter.wait(topology.commit(d), updated);
        emitter.copy(topology.commit(d), reduction_.parameters(first_device, bucket), reduction_.parameters(d, bucket));
    }
}

void UpdateEmitter::emit_gathering(Emitter& emitter, const Bucket& bucket, const std::vector<int>& updated) const {
    const Topology& topology = emitter.topology();
    for (const DeviceIndex d : topology.devices.indices())
        for (const DeviceIndex other : topology.devices.indices()) {
            if (other == d) continue;
            const Bucket part = reduction_.cut().slice(bucket, other);
            emitter.wait(topology.commit(d), at(updated, other));
            emitter.copy(topology.commit(d), reduction_.parameters(other, part), reduction_.parameters(d, part));
        }
}

void UpdateEmitter::emit_bucket(Emitter& emitter, const Bucket& bucket) const {
    if (!by_slices()) {
        emit_part(emitter, first_device, bucket);
        emit_broadcast(emitter, bucket);
        return;
    }
    std::vector<int> updated;
    for (const DeviceIndex d : emitter.topology().devices.indices()) {
        emit_part(emitter, d, reduction_.cut().slice(bucket, d));
        updated.push_back(emitter.record(emitter.topology().commit(d)));
    }
    emit_gathering(emitter, bucket, updated);
}

void UpdateEmitter::emit_slices_of_root(Emitter& emitter, const Bucket& bucket) const {
    if (!by_slices()) return;
    const Topology& topology = emitter.topology();
    const int gradients = emitter.record(topology.commit(first_device));
    for (const DeviceIndex d : topology.devices.others()) {
        const Bucket part = reduction_.cut().slice(bucket, d);
        emitter.wait(topology.commit(d), gradients);
        emitter.memory().store()->ensure_gradients(d);
        emitter.copy(topology.commit(d), reduction_.gradients(first_device, part), reduction_.gradients(d, part));
    }
}

void UpdateEmitter::emit_from_root(Emitter& emitter, const std::vector<Bucket>& buckets) const {
    if (optimizer_.needs_norms()) {
        for (const Bucket& bucket : buckets) emit_slices_of_root(emitter, bucket);
        return emit_gate(emitter, {.norms = true}, buckets);
    }
    for (const Bucket& bucket : buckets) {
        emit_slices_of_root(emitter, bucket);
        emit_bucket(emitter, bucket);
    }
}

void UpdateEmitter::emit_gate(Emitter& emitter, const GateRules& rules, const std::vector<Bucket>& buckets) const {
    std::vector<std::vector<Bucket>> parts(static_cast<std::size_t>(reduction_.cut().updating()));
    for (const Bucket& bucket : buckets)
        for (const DeviceIndex d : reduction_.cut().updating_devices()) {
            const Bucket part = by_slices() ? reduction_.cut().slice(bucket, d) : bucket;
            if (part.elements() > 0) at(parts, d).push_back(part);
        }
    GateEmitter(emitter, reduction_, optimizer_, std::move(parts)).emit(rules);
    for (const Bucket& bucket : buckets) emit_bucket(emitter, bucket);
}

void UpdateEmitter::emit_counts(Emitter& emitter, const std::vector<Bucket>& buckets) const {
    if (!optimizer_.counts_updates()) return;
    for (const DeviceIndex d : reduction_.cut().updating_devices()) {
        const OptimizerState& state = reduction_.state(optimizer_, d);
        for (std::size_t a = 0; a < state.rows.size(); ++a) {
            std::set<int> updated;  // a parameter may be in several buckets
            for (const Bucket& bucket : buckets)
                if (bucket.arena == static_cast<int>(a))
                    for (int i = bucket.first_segment; i < bucket.last_segment; ++i) updated.insert(i);
            if (updated.empty()) continue;
            emitter.run_flat(
                emitter.topology().commit(d), d,
                make_operation(CountUpdates{optimizer_.row_bytes(), std::vector<int>(updated.begin(), updated.end())}),
                {}, {{bytes_meta(state.rows[a]->bytes())}, {fixed(state.rows[a])}});
        }
    }
}

}  // namespace lockstep
