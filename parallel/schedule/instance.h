// A schedule with memory, ready to be enqueued.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/parallel/schedule/schedule.h"
#include "lockstep/parallel/schedule/step_recorder.h"

namespace lockstep {

/// Addresses of one set of workspaces for a schedule. Two forwards before one backward are two instances.
class Instance {
public:
    /// `workspaces`: one per shard, on the device of the shard.
    Instance(const Schedule& schedule, std::vector<std::shared_ptr<Buffer>> workspaces);
    /// Enqueues the commands of `phase` in [first, last). Once commits have begun they must be completed: a failed call
    /// is retried once. `recorder`, which may be null, records when they run, and computing commands as `computing`.
    void enqueue(Schedule& schedule, std::size_t first, std::size_t last, Phase phase, StepRecorder* recorder = nullptr,
                 SpanKind computing = SpanKind::backward);
    void* address(const MemoryRef& ref) const;

    /// Versions, when forward was enqueued, of the tensors that the batch program reads back (ShardProgram::read_back).
    std::vector<std::uint64_t> read_versions;

private:
    struct Task {
        const TaskSpec* spec;
        std::vector<void*> pointers;
        void* scratch;
        std::vector<Access> accesses;
    };
    static void perform(const Task& task, const ExecContext& context);
    void issue(Schedule& schedule, const Command& command);
    /// `attempt` makes each call to a device.
    template <class Attempt>
    void issue_recorded(Schedule& schedule, const Command& command, StepRecorder& recorder, SpanKind computing,
                        Attempt attempt);
    template <class Attempt>
    void enqueue(Schedule& schedule, std::size_t first, std::size_t last, Phase phase, StepRecorder* recorder,
                 SpanKind computing, Attempt attempt);
    char* start(const MemoryRef& ref) const;
    Access access(const MemoryRef& ref, Device runner, bool write) const;
    std::vector<std::shared_ptr<Buffer>> workspaces_;
    std::vector<Task> tasks_;
};

}  // namespace lockstep
