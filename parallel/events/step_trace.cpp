#include "lockstep/parallel/step_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "lockstep/parallel/data/atomic_file.h"

namespace lockstep {

namespace {

/// A list of JSON objects.
class EventList {
public:
    explicit EventList(int rank) : rank_(rank) {}

    /// Name of the process, or of one of its tracks.
    void name(const char* what, int track, const std::string& name) {
        add(fmt::format(R"({{"ph":"M","pid":{},"tid":{},"name":"{}_name","args":{{"name":{}}}}})", rank_, track, what,
                        quoted(name)));
    }
    /// `arguments`: the members of a JSON object.
    void span(int track, const std::string& name, std::string_view category, double begin, double end,
              const std::string& arguments) {
        constexpr double us_per_ms = 1000;
        add(fmt::format(R"({{"ph":"X","pid":{},"tid":{},"name":{},"cat":"{}","ts":{:.3f},"dur":{:.3f},"args":{{{}}}}})",
                        rank_, track, quoted(name), category, begin * us_per_ms,
                        std::max(0.0, (end - begin) * us_per_ms), arguments));
    }
    std::string text() const { return text_; }

private:
    static std::string quoted(const std::string& text) {
        return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    }
    void add(const std::string& event) {
        if (!text_.empty()) text_ += ",\n";
        text_ += event;
    }
    int rank_;
    std::string text_;
};

}  // namespace

std::string trace_events(const std::vector<LoggedStep>& steps, int rank) {
    constexpr int steps_track = 0;
    EventList events(rank);
    events.name("process", steps_track, fmt::format("rank {}", rank));
    events.name("thread", steps_track, "steps");
    std::map<std::string, int> tracks;
    for (const LoggedStep& step : steps) {
        const std::string number = fmt::format(R"("step":{})", step.number);
        double begin = 0, end = 0;
        std::size_t collectives = 0;
        for (const StepSpan& span : step.spans) {
            const auto [track, is_new] = tracks.try_emplace(span.stream, static_cast<int>(tracks.size()) + 1);
            if (is_new) events.name("thread", track->second, span.stream);
            const bool first = &span == step.spans.data();
            begin = first ? span.begin : std::min(begin, span.begin);
            end = first ? span.end : std::max(end, span.end);
            std::string arguments = number;
            if (span.collective && collectives < step.arrivals.size()) {
                const Arrival& arrival = step.arrivals[collectives++];
                arguments += fmt::format(R"(,"last rank":{},"waited ms":{:.6f})", arrival.last_rank,
                                         std::max(0.0, arrival.last - arrival.own));
            }
            events.span(track->second, span.name, name_of(span.kind), span.begin, span.end, arguments);
        }
        if (!step.spans.empty())
            events.span(steps_track, fmt::format("step {}", step.number), "step", begin, end, number);
    }
    return events.text();
}

void write_trace(const std::filesystem::path& path, const std::vector<std::string>& processes) {
    std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
    bool first = true;
    for (const std::string& events : processes) {
        if (events.empty()) continue;
        if (!first) text += ",\n";
        first = false;
        text += events;
    }
    text += "\n]}\n";
    AtomicFile file(path);
    file.write(std::as_bytes(std::span(text)));
    file.commit();
}

}  // namespace lockstep
