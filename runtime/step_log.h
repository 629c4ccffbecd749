// What ran when in a training step: forward, backward, communication and update on every stream, and who waited.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

enum class SpanKind : std::uint8_t {
    input,  ///< rows of the batch are copied to where the step reads them
    forward,
    backward,
    communication,  ///< sums over devices or processes, copies of weights from device to device
    update,         ///< the optimizer
    commit          ///< agreement on the status, counters, running statistics
};

/// "forward"
std::string_view name_of(SpanKind kind);

/// One operation or copy.
struct StepSpan {
    SpanKind kind = SpanKind::forward;
    bool collective = false;  ///< the processes of the job meet in it
    std::string stream;       ///< "cpu:1/compute0"
    std::string name;         ///< of the operation: "conv2d"; "copy"
    /// Milliseconds of the clock that all processes of this host share (std::chrono::steady_clock).
    double begin = 0, end = 0;
};

/// When a rank got to a collective, and the last one did.
struct Arrival {
    double own = 0, last = 0;  ///< milliseconds, as in StepSpan
    int last_rank = 0;
};

struct LoggedStep {
    std::uint64_t number = 0;     ///< counts the steps since the log was switched on, from 0
    std::vector<StepSpan> spans;  ///< in the order in which the host enqueued them
    /// One for each collective among the spans, in their order. Empty where this process trains alone, where processes
    /// of several hosts have no clock in common, and where they have logged different things (some have failed).
    std::vector<Arrival> arrivals;
    /// The rank for which all others together have waited longest, and how long they did; -1 where nobody knows.
    int slowest_rank = -1;
    double waited_for_slowest = 0;
};

/// Where the milliseconds of a step went. What computing streams (those with forward or backward) did and waited for,
/// means over them: input + forward + backward + slowest + exposed + update + rest = step.
struct StepSplit {
    double step = 0;   ///< from a stream's first work to its first work of the next step
    double input = 0;  ///< copying the batch, and waiting for it or the host before that
    double forward = 0, backward = 0;
    double slowest = 0;  ///< waiting while another device computes, or in a collective that not all have come to yet
    double exposed = 0;  ///< other waiting while communication is under way
    double update = 0;   ///< waiting while parameters are updated or something is committed
    double rest = 0;     ///< waiting for none of these: threads that wake up, launches

    // What happened beside that, whoever waited for it; of this process.
    double communication = 0;   ///< time in which some was under way
    double overlap = 0;         ///< of that, while some stream was in backward
    double updating = 0;        ///< time in which parameters were updated
    double in_collectives = 0;  ///< time between coming to collectives and the last rank's coming
};

/// The split of every step but the last one, whose end nobody has seen. Steps that are not followed by the next one (a
/// step was refused between them) are left out, as are those without spans.
std::vector<StepSplit> split_steps(const std::vector<LoggedStep>& steps);

}  // namespace lockstep
