// A placed program as a list of commands: which stream runs which task, where events are recorded and awaited. Made
// once, replayed every step.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/schedule/step_recorder.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/stream.h"

namespace lockstep {

/// A place that a task's pointer is taken from: a workspace (whose address an instance decides), or fixed memory.
struct PlaceRef {
    int workspace = -1;              ///< shard whose workspace it is, or -1
    std::size_t offset = 0;          ///< bytes into the workspace, or into `memory`
    std::shared_ptr<Buffer> memory;  ///< fixed memory; null with workspace -1: a null pointer
    std::size_t bytes = 0;           ///< for the ordering checker
    std::ptrdiff_t first = 0;        ///< bytes from `offset` to the first element; may be negative
    Device owner;
};

/// Fixed memory: `bytes` from `offset` on.
PlaceRef fixed(const std::shared_ptr<Buffer>& memory, std::size_t offset, std::size_t bytes);

/// What is decided must go through: a call of a device's that fails, and so has done nothing, is made once more.
/// Several calls at once are for this only where those that went well may be made again.
template <class Call>
void insist(Call&& call) {
    try {
        call();
    } catch (const DeviceError&) {
        call();
    }
}

/// What became of kernels that run on CPU workers, where they may throw.
struct Health {
    std::atomic<bool> failed{false};  ///< one threw, and the host has not yet passed that on; commits look here too
    std::atomic<std::int64_t> failed_step{-1};  ///< its step, where it belongs to backward
    std::atomic<std::int64_t> committing{-1};   ///< the last step of which something was committed
};

/// A kernel with everything it needs but the addresses of workspaces.
struct TaskSpec {
    std::shared_ptr<const Operation> operation;
    std::shared_ptr<const Kernel> kernel;
    std::vector<PlaceRef> in, out;
    PlaceRef scratch;
    const char* call = nullptr;  ///< see Record
    const StepState* step = nullptr;
    StatusWord* status = nullptr;
    const StatusWord* agreed = nullptr;
    Health* health = nullptr;
    bool prepares = false;  ///< commits to what does not outlive the step
    std::uint32_t ordinal = 0;
    int shard = 0;
    std::int64_t first_row = 0;
    int shards = 1;
    int replica = 0;
    bool updates = false;     ///< an optimizer's (for the log of steps)
    bool collective = false;  ///< likewise: processes meet in it
};

struct CopySpec {
    PlaceRef from, to;
    std::size_t bytes = 0;
};

/// What the host does in the order of a stream, on memory of its own: as a host function, which may wait for other
/// processes, never for a device of this one or for a thread that calls CUDA.
struct CallSpec {
    std::string name;
    std::function<void()> function;  ///< what it throws is the stream's failure; of one by the host, the step's
    bool collective = false;         ///< as in TaskSpec
    /// It may call CUDA: whoever enqueues waits for the stream and makes the call himself.
    bool by_host = false;
    std::size_t reached = 0;  ///< of one by the host: the event to wait for
};

/// A step is enqueued in two phases, so that whatever goes wrong while most of it is enqueued leaves the model as it
/// was.
enum class Phase : std::uint8_t {
    work,   ///< what changes nothing that outlives the step
    commit  ///< what runs on streams that commit, and waits for them
};

struct Command {
    enum class Kind : std::uint8_t { run, copy, call, record, wait };
    Kind kind = Kind::run;
    Phase phase = Phase::work;
    Stream* stream = nullptr;
    std::size_t index = 0;  ///< of the task, copy, call or event
};

/// Commands in the order in which the host enqueues those of a phase. The phase follows from the stream: nothing of the
/// first one may wait for an event of the second.
class Schedule {
public:
    void run(Stream& stream, TaskSpec task);
    void copy(Stream& stream, CopySpec copy);
    void call(Stream& stream, CallSpec call);
    /// A new event, recorded here.
    int record(Stream& stream);
    void wait(Stream& stream, int event);
    /// Moves calls by the host among [first, last), and all that comes behind one, to where the devices have been given
    /// everything else: they are at work while the host waits.
    void put_off_calls(std::size_t first, std::size_t last);

    const std::vector<Command>& commands() const { return commands_; }
    const std::vector<TaskSpec>& tasks() const { return tasks_; }
    const std::vector<CopySpec>& copies() const { return copies_; }
    const std::vector<CallSpec>& calls() const { return calls_; }
    std::vector<Event>& events() { return events_; }
    std::size_t size() const { return commands_.size(); }

private:
    void add(Command::Kind kind, Stream& stream, std::size_t index, Phase phase);
    std::vector<Command> commands_;
    std::vector<TaskSpec> tasks_;
    std::vector<CopySpec> copies_;
    std::vector<CallSpec> calls_;
    std::vector<Event> events_;
    std::vector<Phase> phase_of_event_;
};

/// A schedule with memory: addresses of one set of workspaces. Two forwards before one backward are two instances.
class Instance {
public:
    /// `workspaces`: one a shard, on the device of the shard.
    Instance(const Schedule& schedule, std::vector<std::shared_ptr<Buffer>> workspaces);
    /// Enqueues the commands of `phase` among [first, last). Once commits have begun they must go on: a call that fails
    /// is made once more. `recorder`: notes when they run; may be null. What computes is noted as `computing`.
    void enqueue(Schedule& schedule, std::size_t first, std::size_t last, Phase phase, StepRecorder* recorder = nullptr,
                 SpanKind computing = SpanKind::backward);
    void* address(const PlaceRef& place) const;

private:
    struct Task {
        const TaskSpec* spec;
        std::vector<void*> pointers;
        void* scratch;
        std::vector<Access> accesses;
    };
    static void perform(const Task& task, const Launch& launch);
    void issue(Schedule& schedule, const Command& command);
    /// `attempt` is what each call of a device's goes through.
    template <class Attempt>
    void issue_recorded(Schedule& schedule, const Command& command, StepRecorder& recorder, SpanKind computing,
                        Attempt attempt);
    template <class Attempt>
    void enqueue(Schedule& schedule, std::size_t first, std::size_t last, Phase phase, StepRecorder* recorder,
                 SpanKind computing, Attempt attempt);
    char* start(const PlaceRef& place) const;
    Access access(const PlaceRef& place, Device runner, bool write) const;
    std::vector<std::shared_ptr<Buffer>> workspaces_;
    std::vector<Task> tasks_;
};

}  // namespace lockstep
