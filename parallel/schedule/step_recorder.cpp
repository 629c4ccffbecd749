#include "lockstep/parallel/schedule/step_recorder.h"

#include <algorithm>
#include <chrono>
#include <map>

namespace lockstep {

namespace {

double now() {
    using Milliseconds = std::chrono::duration<double, std::milli>;
    return Milliseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// An event of a device for which the host knows when it was reached.
struct Anchor {
    explicit Anchor(Stream& stream) : event(stream.device(), true) {
        double closest = -1;
        for (int attempt = 0; attempt < 8; ++attempt) {
            Event candidate(stream.device(), true);
            const double before = now();
            stream.record(candidate);
            candidate.synchronize();
            const double after = now();
            if (closest >= 0 && after - before >= closest) continue;
            closest = after - before;
            reached = (before + after) / 2;
            event = std::move(candidate);
        }
    }
    Event event;
    double reached = 0;
};

}  // namespace

void StepRecorder::begin_step() {
    current_ = &steps_[begun_ % steps_.size()];
    current_->number = begun_++;
    current_->used = 0;
}

void StepRecorder::go_on() {
    constexpr std::size_t max_marks = 100'000;  // a program may take gradients and never update
    if (open_) current_ = &steps_[(begun_ - 1) % steps_.size()];
    if (!open_ || current_->used > max_marks) begin_step();
    open_ = true;
}

StepRecorder::Mark& StepRecorder::next_mark(Stream& stream) {
    if (current_->used == current_->marks.size()) return current_->marks.emplace_back(stream);
    Mark& mark = current_->marks[current_->used];
    if (mark.stream->device() != stream.device()) mark = Mark(stream);
    mark.stream = &stream;
    return mark;
}

std::vector<LoggedStep> StepRecorder::read() const {
    std::vector<LoggedStep> steps;
    std::map<Device, Anchor> anchors;
    for (std::uint64_t number = begun_ - std::min<std::uint64_t>(begun_, steps_.size()); number < begun_; ++number) {
        const Step& step = steps_[number % steps_.size()];
        LoggedStep& logged = steps.emplace_back();
        logged.number = step.number;
        for (std::size_t i = 0; i < step.used; ++i) {
            const Mark& mark = step.marks[i];
            mark.end.synchronize();
            const Anchor& anchor = anchors.try_emplace(mark.stream->device(), *mark.stream).first->second;
            const auto time_of = [&](const Event& event) {
                return anchor.reached - Event::elapsed_ms(event, anchor.event);
            };
            logged.spans.push_back(
                {mark.kind, mark.collective, mark.stream->name(), mark.name, time_of(mark.begin), time_of(mark.end)});
        }
    }
    return steps;
}

}  // namespace lockstep
