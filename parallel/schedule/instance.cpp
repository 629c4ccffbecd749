#include "lockstep/parallel/schedule/instance.h"

#include <fmt/format.h>

#include "lockstep/parallel/schedule/retry_once.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/api_scope.h"

namespace lockstep {

Instance::Instance(const Schedule& schedule, std::vector<std::shared_ptr<Buffer>> workspaces)
    : workspaces_(std::move(workspaces)) {
    std::vector<Device> runner(schedule.tasks().size());
    for (const Command& command : schedule.commands())
        if (command.kind == Command::Kind::run) runner[command.index] = command.stream->device();
    tasks_.reserve(schedule.tasks().size());
    for (std::size_t i = 0; i < schedule.tasks().size(); ++i) {
        const TaskSpec& spec = schedule.tasks()[i];
        Task task{&spec, {}, address(spec.scratch), {}};
        for (const MemoryRef& ref : spec.in) {
            task.pointers.push_back(address(ref));
            if (task.pointers.back()) task.accesses.push_back(access(ref, runner[i], false));
        }
        for (const MemoryRef& ref : spec.out) {
            task.pointers.push_back(address(ref));
            if (task.pointers.back()) task.accesses.push_back(access(ref, runner[i], true));
        }
        if (task.scratch) task.accesses.push_back(access(spec.scratch, runner[i], true));
        // In addition to the operands, the kernel reads and writes control words, also when it throws.
        if (spec.operation->is_random() || spec.operation->commits() || spec.status)
            task.accesses.push_back({spec.step, sizeof(StepCounters), runner[i], Access::Mode::read});
        if (spec.operation->commits())
            task.accesses.push_back({spec.agreed, sizeof(StatusWord), runner[i], Access::Mode::read});
        if (spec.status) task.accesses.push_back({spec.status, sizeof(StatusWord), runner[i], Access::Mode::write});
        tasks_.push_back(std::move(task));
    }
}

char* Instance::start(const MemoryRef& ref) const {
    if (ref.workspace >= 0)
        return static_cast<char*>(workspaces_[static_cast<std::size_t>(ref.workspace)]->data()) + ref.offset;
    return ref.memory ? static_cast<char*>(ref.memory->data()) + ref.offset : nullptr;
}

void* Instance::address(const MemoryRef& ref) const {
    char* begin = start(ref);
    return begin ? begin + ref.first : nullptr;
}

Access Instance::access(const MemoryRef& ref, Device runner, bool write) const {
    const Access::Mode mode = write                 ? Access::Mode::write
                              : ref.owner == runner ? Access::Mode::read
                                                    : Access::Mode::peer_read;
    return {start(ref), ref.bytes, ref.owner, mode};
}

void Instance::perform(const Task& task, const ExecContext& context) {
    const TaskSpec& spec = *task.spec;
    Health* health = context.native ? nullptr : spec.health;
    if (spec.operation->commits() && health) {
        if (health->failed) return;
        if (spec.agreed->code == 0 && !spec.prepares) health->committing = static_cast<std::int64_t>(spec.step->step);
    }
    try {
        spec.kernel->run({context, task.pointers.data(), task.pointers.data() + spec.in.size(), task.scratch, spec.step,
                          spec.status, spec.agreed, spec.ordinal, spec.shard, spec.first_row, spec.shards});
    } catch (const std::exception& error) {
        // On a CPU device this thread is the worker: the step must not commit in any case.
        if (!context.native && spec.status)
            *spec.status = {static_cast<std::int32_t>(StatusCode::operation_failed), spec.shard,
                            static_cast<std::int64_t>(spec.step->step), 0, 0};
        if (health) {
            if (!spec.status && spec.step) health->failed_step = static_cast<std::int64_t>(spec.step->step);
            health->failed = true;
        }
        if (dynamic_cast<const CommunicationError*>(&error)) throw;  // names rank and operation itself
        throw DeviceError(fmt::format("replica {} on {}, shard {}: {}: {}", spec.replica.number(), context.device.str(),
                                      spec.shard, call_and_operation(spec.call, spec.operation->name()), error.what()));
    }
}

void Instance::issue(Schedule& schedule, const Command& command) {
    switch (command.kind) {
        case Command::Kind::run: {
            const Task& task = tasks_[command.index];
            command.stream->run(
                task.spec->operation->name(), task.accesses,
                [&task](const ExecContext& context) { perform(task, context); }, task.spec->kernel->threads);
            break;
        }
        case Command::Kind::copy: {
            const CopySpec& copy = schedule.copies()[command.index];
            command.stream->copy(address(copy.to), copy.to.owner, address(copy.from), copy.from.owner, copy.bytes);
            break;
        }
        case Command::Kind::call: {
            const CallSpec& call = schedule.calls()[command.index];
            if (!call.by_host) {
                command.stream->callback(call.function);
                break;
            }
            Event& reached = schedule.events()[call.reached];
            command.stream->record(reached);
            reached.synchronize();
            call.function();
            break;
        }
        case Command::Kind::record: command.stream->record(schedule.events()[command.index]); break;
        case Command::Kind::wait: command.stream->wait(schedule.events()[command.index]); break;
    }
}

namespace {

SpanKind kind_of(const Stream& stream, const TaskSpec& task, SpanKind computing) {
    switch (stream.role()) {
        case StreamRole::compute: return computing;
        case StreamRole::input: return SpanKind::input;
        case StreamRole::reduce:
        case StreamRole::collective: return SpanKind::communication;
        case StreamRole::commit: break;
    }
    if (task.updates) return SpanKind::update;
    return task.operation->combines_shards() ? SpanKind::communication : SpanKind::commit;
}

SpanKind kind_of(const Stream& stream, const CopySpec& copy, SpanKind computing) {
    if (stream.role() == StreamRole::compute) return computing;
    const bool inside = stream.role() == StreamRole::commit && copy.from.owner == copy.to.owner;
    return inside ? SpanKind::commit : SpanKind::communication;
}

}  // namespace

template <class Attempt>
void Instance::issue_recorded(Schedule& schedule, const Command& command, StepRecorder& recorder, SpanKind computing,
                              Attempt attempt) {
    Stream& stream = *command.stream;
    const auto enqueue = [&] { issue(schedule, command); };
    const auto around = [&](SpanKind kind, bool collective, std::string_view name) {
        recorder.around(stream, kind, collective, name, enqueue, attempt);
    };
    switch (command.kind) {
        case Command::Kind::run: {
            const TaskSpec& task = *tasks_[command.index].spec;
            around(kind_of(stream, task, computing), task.collective, task.operation->name());
            break;
        }
        case Command::Kind::copy:
            around(kind_of(stream, schedule.copies()[command.index], computing), false, "copy");
            break;
        case Command::Kind::call: {
            const CallSpec& call = schedule.calls()[command.index];
            around(SpanKind::communication, call.collective, call.name);
            break;
        }
        case Command::Kind::record:
        case Command::Kind::wait: attempt(enqueue); break;
    }
}

template <class Attempt>
void Instance::enqueue(Schedule& schedule, std::size_t first, std::size_t last, Phase phase, StepRecorder* recorder,
                       SpanKind computing, Attempt attempt) {
    for (std::size_t i = first; i < last; ++i) {
        const Command& command = schedule.commands()[i];
        if (command.phase != phase) continue;
        if (recorder)
            issue_recorded(schedule, command, *recorder, computing, attempt);
        else
            attempt([&] { issue(schedule, command); });
    }
}

void Instance::enqueue(Schedule& schedule, std::size_t first, std::size_t last, Phase phase, StepRecorder* recorder,
                       SpanKind computing) {
    if (phase == Phase::work)
        enqueue(schedule, first, last, phase, recorder, computing, [](auto&& call) { call(); });
    else
        enqueue(schedule, first, last, phase, recorder, computing, [](auto&& call) { retry_once(call); });
}

}  // namespace lockstep
