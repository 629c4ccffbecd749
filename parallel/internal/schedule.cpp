#include "lockstep/parallel/internal/schedule.h"

#include <fmt/format.h>

#include "lockstep/runtime/error.h"

namespace lockstep {

int Schedule::add_task(TaskSpec task) {
    tasks_.push_back(std::move(task));
    return static_cast<int>(tasks_.size()) - 1;
}

void Schedule::run(Stream& stream, int task) { commands_.push_back({Command::Kind::run, &stream, task}); }

void Schedule::copy(Stream& stream, CopySpec copy) {
    if (copy.bytes == 0) return;
    copies_.push_back(std::move(copy));
    commands_.push_back({Command::Kind::copy, &stream, static_cast<int>(copies_.size()) - 1});
}

int Schedule::record(Stream& stream) {
    events_.emplace_back(stream.device());
    const int event = static_cast<int>(events_.size()) - 1;
    commands_.push_back({Command::Kind::record, &stream, event});
    return event;
}

void Schedule::wait(Stream& stream, int event) { commands_.push_back({Command::Kind::wait, &stream, event}); }

Instance::Instance(const Schedule& schedule, std::vector<std::shared_ptr<Buffer>> workspaces)
    : workspaces_(std::move(workspaces)) {
    std::vector<Device> runner(schedule.tasks().size());
    for (const Command& command : schedule.commands())
        if (command.kind == Command::Kind::run)
            runner[static_cast<std::size_t>(command.index)] = command.stream->device();
    tasks_.reserve(schedule.tasks().size());
    for (std::size_t i = 0; i < schedule.tasks().size(); ++i) {
        const TaskSpec& spec = schedule.tasks()[i];
        Task task{&spec, {}, address(spec.scratch), {}};
        for (const PlaceRef& place : spec.in) {
            task.pointers.push_back(address(place));
            if (task.pointers.back()) task.accesses.push_back(access(place, runner[i], false));
        }
        for (const PlaceRef& place : spec.out) {
            task.pointers.push_back(address(place));
            if (task.pointers.back()) task.accesses.push_back(access(place, runner[i], true));
        }
        if (task.scratch) task.accesses.push_back(access(spec.scratch, runner[i], true));
        // Control words are read and written beside the operands: by the kernel, and when it throws.
        if (spec.operation->is_random() || spec.status)
            task.accesses.push_back({spec.step, sizeof(StepState), runner[i], Access::Mode::read});
        if (spec.operation->commits())
            task.accesses.push_back({spec.agreed, sizeof(StatusWord), runner[i], Access::Mode::read});
        if (spec.status) task.accesses.push_back({spec.status, sizeof(StatusWord), runner[i], Access::Mode::write});
        tasks_.push_back(std::move(task));
    }
}

char* Instance::start(const PlaceRef& place) const {
    if (place.workspace >= 0)
        return static_cast<char*>(workspaces_[static_cast<std::size_t>(place.workspace)]->data()) + place.offset;
    return place.memory ? static_cast<char*>(place.memory->data()) + place.offset : nullptr;
}

void* Instance::address(const PlaceRef& place) const {
    char* begin = start(place);
    return begin ? begin + place.first : nullptr;
}

Access Instance::access(const PlaceRef& place, Device runner, bool write) const {
    const Access::Mode mode = write                   ? Access::Mode::write
                              : place.owner == runner ? Access::Mode::read
                                                      : Access::Mode::peer_read;
    return {start(place), place.bytes, place.owner, mode};
}

void Instance::perform(const Task& task, const Launch& launch) {
    const TaskSpec& spec = *task.spec;
    if (!launch.native && spec.failed && *spec.failed && spec.operation->commits()) return;
    try {
        spec.kernel->run({launch, task.pointers.data(), task.pointers.data() + spec.in.size(), task.scratch, spec.step,
                          spec.status, spec.agreed, spec.ordinal, spec.shard, spec.first_row, spec.shards});
    } catch (const std::exception& error) {
        // On a CPU device this is the worker: the step must not commit, whatever else goes on.
        if (!launch.native && spec.status)
            *spec.status = {static_cast<std::int32_t>(StatusCode::operation_failed), spec.shard,
                            static_cast<std::int64_t>(spec.step->step), 0, 0};
        if (!launch.native && spec.failed) *spec.failed = true;
        throw DeviceError(fmt::format("replica {} on {}, shard {}: {}: {}", spec.replica, launch.device.str(),
                                      spec.shard, spec.operation->name(), error.what()));
    }
}

void Instance::enqueue(Schedule& schedule, std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) {
        const Command& command = schedule.commands()[i];
        const auto index = static_cast<std::size_t>(command.index);
        switch (command.kind) {
            case Command::Kind::run: {
                const Task& task = tasks_[index];
                command.stream->run(
                    task.spec->operation->name(), task.accesses,
                    [&task](const Launch& launch) { perform(task, launch); }, task.spec->kernel->threads);
                break;
            }
            case Command::Kind::copy: {
                const CopySpec& copy = schedule.copies()[index];
                command.stream->copy(address(copy.to), copy.to.owner, address(copy.from), copy.from.owner, copy.bytes);
                break;
            }
            case Command::Kind::record: command.stream->record(schedule.events()[index]); break;
            case Command::Kind::wait: command.stream->wait(schedule.events()[index]); break;
        }
    }
}

}  // namespace lockstep
