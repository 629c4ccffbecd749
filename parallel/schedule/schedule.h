// A schedule: the tasks of each stream, and where events are recorded and awaited. Created once, replayed every step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/schedule/health.h"
#include "lockstep/parallel/schedule/memory_ref.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/stream.h"

namespace lockstep {

/// A kernel with everything that it needs except the addresses of workspaces.
struct TaskSpec {
    std::shared_ptr<const Operation> operation;
    std::shared_ptr<const Kernel> kernel;
    std::vector<MemoryRef> in, out;
    MemoryRef scratch;
    const char* call = nullptr;  ///< see Record
    const StepCounters* step = nullptr;
    StatusWord* status = nullptr;
    const StatusWord* agreed = nullptr;
    Health* health = nullptr;
    bool prepares = false;  ///< commits to memory that does not outlive the step
    std::uint32_t ordinal = 0;
    int shard = 0;
    std::int64_t first_row = 0;
    int shards = 1;
    DeviceIndex replica;
    bool updates = false;     ///< an optimizer's update (for the log of steps)
    bool collective = false;  ///< whether it is a collective
};

struct CopySpec {
    MemoryRef from, to;
    std::size_t bytes = 0;
};

/// A call of the host in the order of a stream, on its own memory: a host function, which may wait for other processes,
/// but never for a device of this process or for a thread that calls CUDA.
struct CallSpec {
    std::string name;
    std::function<void()> function;  ///< an exception fails the stream, or the step if `by_host` is set
    bool collective = false;         ///< as in TaskSpec
    /// It may call CUDA: the enqueuing thread waits for the stream and makes the call itself.
    bool by_host = false;
    std::size_t reached = 0;  ///< event to wait for if `by_host` is set
};

/// A step is enqueued in two phases, so that an error while most of it is enqueued leaves the model unchanged.
enum class Phase : std::uint8_t {
    work,   ///< changes no persistent state
    commit  ///< runs on commit streams, and waits for them
};

struct Command {
    enum class Kind : std::uint8_t { run, copy, call, record, wait };
    Kind kind = Kind::run;
    Phase phase = Phase::work;
    Stream* stream = nullptr;
    std::size_t index = 0;  ///< index of the task, copy, call or event
};

/// Commands in the order in which the host enqueues those of a phase. The phase follows from the stream: no command of
/// the first phase may wait for an event of the second.
class Schedule {
public:
    void run(Stream& stream, TaskSpec task);
    void copy(Stream& stream, CopySpec copy);
    void call(Stream& stream, CallSpec call);
    /// A new event, recorded here.
    int record(Stream& stream);
    void wait(Stream& stream, int event);
    /// Moves calls by the host in [first, last), and everything that waits for one, to the end of that range, so that
    /// the devices have work while the host waits.
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

}  // namespace lockstep
