// Timeline of a training step: forward, backward, communication, update and waiting on every stream.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/runtime/language.h"

namespace lockstep {

/// Kind of work in a step.
enum class SpanKind : std::uint8_t {
    input,  ///< rows of the batch are copied to the step's input buffers
    forward,
    backward,
    communication,  ///< sums over devices or processes, copies of weights between devices
    update,         ///< the optimizer
    commit          ///< agreement on the status, counters, running statistics
};

/// "forward"
std::string_view name_of(SpanKind kind);

/// One operation or copy.
struct StepSpan {
    SpanKind kind = SpanKind::forward;
    bool collective = false;  ///< synchronizes the processes of the job
    std::string stream;       ///< "cpu:1/compute0"
    std::string name;         ///< operation, such as "conv2d", or "copy"
    /// Milliseconds of the clock that all processes of this host share (std::chrono::steady_clock).
    double begin = 0, end = 0;
};

/// Times at which a rank and the last rank reached a collective.
struct Arrival {
    double own = 0, last = 0;  ///< milliseconds, as in StepSpan
    int last_rank = 0;
};

/// Work of one step.
struct LoggedStep {
    std::uint64_t number = 0;     ///< number of the step since the log was enabled, from 0
    std::vector<StepSpan> spans;  ///< in the order in which the host enqueued them
    /// One for each collective among the spans, in their order. Empty if this process trains by itself, or if the
    /// processes are on several hosts, which have no common clock. Also empty if their logs differ (some ranks have
    /// failed).
    std::vector<Arrival> arrivals;
    /// The rank for which all others together have waited longest, and how long they waited; -1 if unknown.
    int slowest_rank = -1;
    double waited_for_slowest = 0;
};

/// Breakdown of a step's milliseconds: work and waiting of the compute streams (those with forward or backward), as
/// means over them. input + forward + backward + slowest + exposed + update + rest = step.
struct StepSplit {
    double step = 0;   ///< from a stream's first work to its first work of the next step
    double input = 0;  ///< copying the batch, and waiting before that for it or the host
    double forward = 0, backward = 0;
    double slowest = 0;  ///< waiting while another device computes, or in a collective for other ranks
    double exposed = 0;  ///< other waiting while communication is in flight
    double update = 0;   ///< waiting while parameters are updated or something is committed
    double rest = 0;     ///< other waiting: thread wake-ups, launches

    // Activity of this process at the same time, whether or not a stream waited for it.
    double communication = 0;   ///< time in which communication was in flight
    double overlap = 0;         ///< part of `communication` in which some stream was in backward
    double updating = 0;        ///< time in which parameters were updated
    double in_collectives = 0;  ///< time from reaching collectives until the last rank reached them
};

/// The split of every step except the last one, whose end is unknown. Steps that are not followed by the next one (a
/// step was refused between them) are omitted, as are steps without spans.
std::vector<StepSplit> split_steps(const std::vector<LoggedStep>& steps);

}  // namespace lockstep
