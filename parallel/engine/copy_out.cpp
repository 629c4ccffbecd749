#include "lockstep/parallel/engine/copy_out.h"

#include <new>
#include <vector>

namespace lockstep {

namespace {

/// A device changes persistent state only on its commit stream, so these copies run between two steps.
void enqueue(const std::vector<StateCopy>& copies) {
    for (const StateCopy& copy : copies)
        if (copy.bytes > 0)
            Stream::of(copy.device, StreamRole::commit)
                .copy(copy.to, Device::host(), copy.from, copy.device, copy.bytes);
}

}  // namespace

void copy_out(EngineParts& parts, StateCopies& copies) {
    const Topology& topology = parts.topology;
    Stream& root = topology.commit(first_device);
    // Members are written, and new state is zeroed, on the streams of eager tensors.
    for (const DeviceIndex d : topology.devices.indices()) topology.commit(d).wait(Stream::of(topology.devices[d]));
    enqueue(copies.members);
    // Later writes of a member must not overtake the copies.
    Stream::of(topology.devices[0]).wait(root);
    enqueue(copies.others);
    for (const DeviceIndex d : topology.devices.others()) root.wait(topology.commit(d));
    auto* const outcome = new (copies.outcome->data()) StateCopies::Outcome;
    root.copy(&outcome->status, Device::host(), parts.memory.control(first_device).agreed(), topology.devices[0],
              sizeof outcome->status);
    root.callback([outcome, kept = copies.outcome, &ranks = parts.ranks, &health = *parts.memory.health()] {
        outcome->kernels_failed = ranks.refuses(health);
    });
    root.record(copies.done);
}

}  // namespace lockstep
