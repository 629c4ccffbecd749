// Records the log of an engine's last steps: an event before and one after everything that a schedule enqueues.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/runtime/step_log.h"
#include "lockstep/runtime/stream.h"

namespace lockstep {

class StepRecorder {
public:
    /// Records the last `kept` steps.
    explicit StepRecorder(int kept) : steps_(static_cast<std::size_t>(kept)) {}

    /// Work that is enqueued from now on belongs to a new step, or after `pause` to none.
    void begin_step();
    /// The manual step: work belongs to the step that lasts until the optimizer has updated.
    void go_on();
    void pause() { current_ = nullptr; }
    void close_step() { open_ = false; }
    /// Calls `enqueue`, which enqueues one piece of work on `stream`. The piece and its two events are each passed to
    /// `attempt`, so that a failed call does not repeat those before it.
    template <class Enqueue, class Attempt>
    void around(Stream& stream, SpanKind kind, bool collective, std::string_view name, Enqueue&& enqueue,
                Attempt&& attempt) {
        if (!current_) return attempt(enqueue);
        Mark& mark = next_mark(stream);
        attempt([&] { stream.record(mark.begin); });
        attempt(enqueue);
        attempt([&] { stream.record(mark.end); });
        mark.kind = kind;
        mark.collective = collective;
        mark.name = name;
        ++current_->used;
    }

    /// The steps in order, without arrivals; waits for their work.
    std::vector<LoggedStep> read() const;

private:
    struct Mark {
        explicit Mark(Stream& s) : begin(s.device(), true), end(s.device(), true), stream(&s) {}
        Event begin, end;
        Stream* stream;
        SpanKind kind = SpanKind::commit;
        bool collective = false;
        std::string name;
    };
    struct Step {
        std::uint64_t number = 0;
        std::size_t used = 0;  ///< number of marks in use: events are reused
        std::vector<Mark> marks;
    };
    Mark& next_mark(Stream& stream);

    std::vector<Step> steps_;
    std::uint64_t begun_ = 0;
    Step* current_ = nullptr;
    bool open_ = false;  ///< whether it is a manual step
};

/// Role of a call in a step, for `recorder`, which may be null.
class StepScope {
public:
    enum class Part : std::uint8_t { whole, some, last };

    StepScope(StepRecorder* recorder, Part part) : recorder_(recorder), part_(part) {
        if (recorder_) part == Part::whole ? recorder_->begin_step() : recorder_->go_on();
    }
    ~StepScope() {
        if (!recorder_) return;
        recorder_->pause();
        if (part_ != Part::some) recorder_->close_step();
    }
    StepScope(const StepScope&) = delete;
    StepScope& operator=(const StepScope&) = delete;

private:
    StepRecorder* recorder_;
    Part part_;
};

}  // namespace lockstep
