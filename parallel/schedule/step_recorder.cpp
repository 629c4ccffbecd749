#include "lockstep/parallel/schedule/step_recorder.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <map>

#include "lockstep/parallel/comm/group/communicator.h"

namespace lockstep {

namespace {

double now() {
    using Milliseconds = std::chrono::duration<double, std::milli>;
    return Milliseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// An event of a device of which the host knows when it was reached.
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

std::uint64_t hash_of_host() {
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    return std::hash<std::string>()(boot);
}

/// Who came when to the collectives of all steps, where all ranks can say so.
void add_arrivals(std::vector<LoggedStep>& steps, Communicator& job) {
    const auto ranks = static_cast<std::size_t>(job.size());
    std::vector<double> own;
    for (const LoggedStep& step : steps)
        for (const StepSpan& span : step.spans)
            if (span.collective) own.push_back(span.begin);
    const std::array<std::uint64_t, 3> mine{hash_of_host(), own.size(), steps.empty() ? 0 : steps.front().number};
    std::vector<std::array<std::uint64_t, 3>> all(ranks);
    job.all_gather(&mine, all.data(), std::vector<std::size_t>(ranks, sizeof mine));
    if (std::any_of(all.begin(), all.end(), [&](const auto& other) { return other != mine; })) return;
    std::vector<double> times(own.size() * ranks);
    job.all_gather(own.data(), times.data(), std::vector<std::size_t>(ranks, own.size() * sizeof(double)));
    std::size_t number = 0;
    for (LoggedStep& step : steps) {
        std::vector<double> caused(ranks, 0);
        for (const StepSpan& span : step.spans) {
            if (!span.collective) continue;
            Arrival arrival{own[number], own[number], job.rank()};
            for (std::size_t rank = 0; rank < ranks; ++rank)
                if (const double time = times[rank * own.size() + number]; time > arrival.last) {
                    arrival.last = time;
                    arrival.last_rank = static_cast<int>(rank);
                }
            for (std::size_t rank = 0; rank < ranks; ++rank)
                caused[static_cast<std::size_t>(arrival.last_rank)] += arrival.last - times[rank * own.size() + number];
            step.arrivals.push_back(arrival);
            ++number;
        }
        const auto most = std::max_element(caused.begin(), caused.end());
        if (*most > 0) step.slowest_rank = static_cast<int>(most - caused.begin());
        step.waited_for_slowest = *most;
    }
}

}  // namespace

void StepRecorder::begin_step() {
    current_ = &steps_[begun_ % steps_.size()];
    current_->number = begun_++;
    current_->used = 0;
}

void StepRecorder::go_on() {
    constexpr std::size_t most_marks = 100'000;  // somebody takes gradients and never updates
    if (open_) current_ = &steps_[(begun_ - 1) % steps_.size()];
    if (!open_ || current_->used > most_marks) begin_step();
    open_ = true;
}

StepRecorder::Mark& StepRecorder::next_mark(Stream& stream) {
    if (current_->used == current_->marks.size()) return current_->marks.emplace_back(stream);
    Mark& mark = current_->marks[current_->used];
    if (mark.stream->device() != stream.device()) mark = Mark(stream);
    mark.stream = &stream;
    return mark;
}

std::vector<LoggedStep> StepRecorder::read(Communicator* job) const {
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
    if (job) add_arrivals(steps, *job);
    return steps;
}

}  // namespace lockstep
