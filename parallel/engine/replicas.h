// Keeps the replicas equal: copies replica 0 to the others after outside writes, copies changed settings to the
// devices, and compares all replicas on demand.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "lockstep/parallel/engine/engine_parts.h"
#include "lockstep/parallel/schedule/scheduled_program.h"

namespace lockstep {

class ReplicaKeeper {
public:
    explicit ReplicaKeeper(EngineParts& parts)
        : parts_(parts), operations_(static_cast<std::size_t>(parts.topology.devices.size()), 0) {}

    /// Enqueues copies of replica 0 to the others if a member was written since `mark_current`.
    void refresh();
    void mark_current() { version_ = parts_.memory.store()->version(); }
    /// Records that the other replicas may differ.
    void mark_stale() { version_ = ~std::uint64_t{0}; }
    /// Enqueues the optimizer's settings if they changed.
    void store_settings(Optimizer& optimizer);
    /// Makes lanes wait for what was enqueued on the first device's commit stream after a program.
    void hand_back();
    /// Throws DeviceError if a replica differs. Waits.
    void verify();

    void count(const ScheduledProgram& program, bool backward);
    /// Counts the writes of a program's commits on replica 0. Must be called before `mark_current`.
    static void count_writes(const BatchProgram& batch) {
        for (const auto& storage : batch.full->written) storage->count_write();
    }
    const std::vector<std::uint64_t>& operations() const { return operations_; }

private:
    /// Settings in flight to a device: enqueued copies read from here.
    struct SentSettings {
        explicit SentSettings(Device device) : done(device) {}
        Schedule schedule;
        std::vector<std::shared_ptr<Buffer>> pinned;
        std::unique_ptr<Instance> instance;
        Event done;
    };
    /// Enqueues the copies of one device's settings.
    void send_settings(const Optimizer& optimizer, OptimizerState& state, DeviceIndex d, SentSettings& sent);

    EngineParts& parts_;
    std::uint64_t version_ = ~std::uint64_t{0};
    std::deque<SentSettings> sent_settings_;  ///< the latest
    std::vector<std::uint64_t> operations_;
};

}  // namespace lockstep
