#include "lockstep/runtime/step_log.h"

#include <algorithm>
#include <map>
#include <utility>

namespace lockstep {

namespace {

/// Disjoint intervals in ascending order.
using Times = std::vector<std::pair<double, double>>;

Times merged(Times times) {
    std::erase_if(times, [](const auto& time) { return time.second <= time.first; });
    std::sort(times.begin(), times.end());
    Times result;
    for (const auto& time : times)
        if (!result.empty() && time.first <= result.back().second)
            result.back().second = std::max(result.back().second, time.second);
        else
            result.push_back(time);
    return result;
}

double total(const Times& times) {
    double sum = 0;
    for (const auto& [begin, end] : times) sum += end - begin;
    return sum;
}

Times common(const Times& a, const Times& b) {
    Times result;
    for (std::size_t i = 0, j = 0; i < a.size() && j < b.size(); a[i].second < b[j].second ? ++i : ++j) {
        const double begin = std::max(a[i].first, b[j].first), end = std::min(a[i].second, b[j].second);
        if (begin < end) result.emplace_back(begin, end);
    }
    return result;
}

Times without(const Times& a, const Times& b) {
    Times result;
    auto gap = b.begin();
    for (auto [begin, end] : a) {
        while (gap != b.end() && gap->second <= begin) ++gap;
        for (auto next = gap; next != b.end() && next->first < end; ++next) {
            if (begin < next->first) result.emplace_back(begin, next->first);
            begin = std::max(begin, next->second);
        }
        if (begin < end) result.emplace_back(begin, end);
    }
    return result;
}

/// Times at which spans selected by `wanted` were active.
template <class Wanted>
Times times_of(const std::vector<const StepSpan*>& spans, Wanted&& wanted) {
    Times times;
    for (const StepSpan* span : spans)
        if (wanted(*span)) times.emplace_back(span->begin, span->end);
    return merged(std::move(times));
}

bool computes(const StepSpan& span) { return span.kind == SpanKind::forward || span.kind == SpanKind::backward; }

/// Time at which each compute stream first worked on `step`.
std::map<std::string_view, double> beginnings(const LoggedStep& step) {
    std::map<std::string_view, double> first;
    for (const StepSpan& span : step.spans)
        if (computes(span)) first.emplace(span.stream, span.begin);
    for (const StepSpan& span : step.spans)
        if (const auto stream = first.find(span.stream); stream != first.end())
            stream->second = std::min(stream->second, span.begin);
    return first;
}

Times arrivals_awaited(const LoggedStep& step) {
    Times times;
    auto arrival = step.arrivals.begin();
    for (const StepSpan& span : step.spans)
        if (span.collective && arrival != step.arrivals.end()) {
            times.emplace_back(span.begin, std::min(arrival->last, span.end));
            ++arrival;
        }
    return merged(std::move(times));
}

/// Removes the parts explained by `cause` from `waiting`; returns their length.
double explained(Times& waiting, const Times& cause) {
    const double before = total(waiting);
    waiting = without(waiting, cause);
    return before - total(waiting);
}

}  // namespace

std::string_view name_of(SpanKind kind) {
    switch (kind) {
        case SpanKind::input: return "input";
        case SpanKind::forward: return "forward";
        case SpanKind::backward: return "backward";
        case SpanKind::communication: return "communication";
        case SpanKind::update: return "update";
        case SpanKind::commit: break;
    }
    return "commit";
}

std::vector<StepSplit> split_steps(const std::vector<LoggedStep>& steps) {
    std::vector<StepSplit> splits;
    for (std::size_t number = 0; number + 1 < steps.size(); ++number) {
        const LoggedStep &step = steps[number], &next = steps[number + 1];
        const auto begins = beginnings(step), ends = beginnings(next);
        if (next.number != step.number + 1 || begins.empty()) continue;
        // Streams do not wait for each other between steps: spans of neighbouring steps overlap this one's time.
        std::vector<const StepSpan*> own, near;
        Times awaited;
        for (std::size_t i = number == 0 ? 0 : number - 1; i <= number + 1; ++i) {
            for (const StepSpan& span : steps[i].spans) {
                near.push_back(&span);
                if (i == number) own.push_back(&span);
            }
            const Times of_step = arrivals_awaited(steps[i]);
            awaited.insert(awaited.end(), of_step.begin(), of_step.end());
        }
        awaited = merged(std::move(awaited));
        const auto is = [](SpanKind kind) { return [kind](const StepSpan& span) { return span.kind == kind; }; };
        const Times communication = times_of(near, is(SpanKind::communication));
        const Times updating = times_of(
            near, [](const StepSpan& span) { return span.kind == SpanKind::update || span.kind == SpanKind::commit; });

        StepSplit split;
        for (const auto& [stream, begin] : begins) {
            const auto end = ends.find(stream);
            if (end == ends.end()) continue;
            const auto here = [&, name = stream](SpanKind kind) {
                return times_of(own, [&](const StepSpan& span) { return span.kind == kind && span.stream == name; });
            };
            const Times window{{begin, end->second}};
            const Times busy = times_of(near, [name = stream](const StepSpan& span) { return span.stream == name; });
            const double share = 1.0 / static_cast<double>(begins.size());
            split.step += share * (end->second - begin);
            split.forward += share * total(here(SpanKind::forward));
            split.backward += share * total(here(SpanKind::backward));
            const double copying = total(here(SpanKind::input));
            Times waiting = without(window, busy);
            const Times others =
                times_of(near, [name = stream](const StepSpan& span) { return computes(span) && span.stream != name; });
            split.slowest += share * (explained(waiting, others) + explained(waiting, awaited));
            split.exposed += share * explained(waiting, communication);
            split.update += share * explained(waiting, updating);
            // The remaining time before the next step's first work.
            double last = begin;
            for (const StepSpan* span : own)
                if (span->stream == stream) last = std::max(last, span->end);
            split.input += share * (copying + explained(waiting, {{last, end->second}}));
            split.rest += share * total(waiting);
        }
        const Times communicated = times_of(own, is(SpanKind::communication));
        split.communication = total(communicated);
        split.overlap = total(common(communicated, times_of(near, is(SpanKind::backward))));
        split.updating = total(times_of(own, is(SpanKind::update)));
        split.in_collectives = total(arrivals_awaited(step));
        splits.push_back(split);
    }
    return splits;
}

}  // namespace lockstep
