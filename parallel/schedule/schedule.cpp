#include "lockstep/parallel/schedule/schedule.h"

#include <algorithm>
#include <set>

namespace lockstep {

namespace {

Phase phase_of(const Stream& stream) { return stream.role() == StreamRole::commit ? Phase::commit : Phase::work; }

}  // namespace

void Schedule::add(Command::Kind kind, Stream& stream, std::size_t index, Phase phase) {
    commands_.push_back({kind, phase, &stream, index});
}

void Schedule::run(Stream& stream, TaskSpec task) {
    tasks_.push_back(std::move(task));
    add(Command::Kind::run, stream, tasks_.size() - 1, phase_of(stream));
}

void Schedule::copy(Stream& stream, CopySpec copy) {
    if (copy.bytes == 0) return;
    copies_.push_back(std::move(copy));
    add(Command::Kind::copy, stream, copies_.size() - 1, phase_of(stream));
}

void Schedule::call(Stream& stream, CallSpec call) {
    if (call.by_host) {
        call.reached = events_.size();
        events_.emplace_back(stream.device());
        phase_of_event_.push_back(phase_of(stream));
    }
    calls_.push_back(std::move(call));
    add(Command::Kind::call, stream, calls_.size() - 1, phase_of(stream));
}

int Schedule::record(Stream& stream) {
    events_.emplace_back(stream.device());
    phase_of_event_.push_back(phase_of(stream));
    add(Command::Kind::record, stream, events_.size() - 1, phase_of(stream));
    return static_cast<int>(events_.size()) - 1;
}

void Schedule::wait(Stream& stream, int event) {
    const auto index = static_cast<std::size_t>(event);
    const bool committing = phase_of(stream) == Phase::commit || phase_of_event_[index] == Phase::commit;
    add(Command::Kind::wait, stream, index, committing ? Phase::commit : Phase::work);
}

void Schedule::put_off_calls(std::size_t first, std::size_t last) {
    std::set<const Stream*> streams;  // streams after such a call, or after an event that follows one
    std::set<std::size_t> events;
    const auto waits = [&](const Command& command) {
        if (command.phase != Phase::work) return false;
        const bool begins = (command.kind == Command::Kind::call && calls_[command.index].by_host) ||
                            (command.kind == Command::Kind::wait && events.contains(command.index));
        if (begins) streams.insert(command.stream);
        if (!streams.contains(command.stream)) return false;
        if (command.kind == Command::Kind::record) events.insert(command.index);
        return true;
    };
    std::vector<Command> at_once, later;
    for (std::size_t i = first; i < last; ++i) (waits(commands_[i]) ? later : at_once).push_back(commands_[i]);
    const auto middle =
        std::copy(at_once.begin(), at_once.end(), commands_.begin() + static_cast<std::ptrdiff_t>(first));
    std::copy(later.begin(), later.end(), middle);
}

}  // namespace lockstep
