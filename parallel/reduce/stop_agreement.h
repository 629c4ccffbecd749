// Agreement of the processes of a job to end training before the same step, without extra communication.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>

#include "lockstep/runtime/stop_signals.h"

namespace lockstep {

/// Every report of a step (across_ranks.cpp) contains for each rank whether it requests a stop. The first report with a
/// request decides: training ends a fixed number of reports after it, when every host has read it.
///
/// Hosts ask before each step; the stream of collectives passes on the reports, one after another and in the order of
/// the steps.
class StopAgreement {
public:
    /// Encoded request. 0: continue; otherwise two plus a signal's number, two for the program itself, one for a token.
    using Wire = std::uint64_t;
    static_assert(stopped_by_token == -1);
    static Wire wire(std::optional<int> why) { return why ? static_cast<Wire>(*why + 2) : 0; }
    static std::optional<int> from_wire(Wire why) {
        return why > 0 ? std::optional<int>(static_cast<int>(why) - 2) : std::nullopt;
    }

    // Called by the stream of collectives.
    Wire own() const { return own_.load(std::memory_order_relaxed); }
    /// Passes on the maximum of all ranks' requests in a report.
    void hear(Wire why) {
        const std::lock_guard guard(mutex_);
        const std::uint64_t report = heard_++;
        if (why != 0 && report >= counts_from_ && !first_) first_ = {report, why};
    }

    // Called by the host.
    void want(std::optional<int> why) {
        if (const Wire more = wire(why); more > own()) own_.store(more, std::memory_order_relaxed);
    }
    /// Counts an enqueued report.
    void count() { ++enqueued_; }
    /// The reason why training ends before the next step, which would have the next report.
    std::optional<int> before_next_report() {
        const std::lock_guard guard(mutex_);
        if (!first_ || first_->report + delay > enqueued_) return std::nullopt;
        return settled(first_->why);
    }
    /// The same if all ranks have just exchanged `why`.
    std::optional<int> settle(Wire why) {
        const std::lock_guard guard(mutex_);
        return settled(why);
    }

private:
    /// Before report n is enqueued the host has read report n - 3: two steps are in flight in addition to the next one.
    static constexpr std::uint64_t delay = 3;
    struct First {
        std::uint64_t report;
        Wire why;
    };
    /// The agreed stop has been carried out: later reports are about another stop.
    std::optional<int> settled(Wire why) {
        if (why == 0) return std::nullopt;
        own_.store(0, std::memory_order_relaxed);
        counts_from_ = enqueued_;
        first_.reset();
        return from_wire(why);
    }

    std::atomic<Wire> own_{0};
    std::mutex mutex_;
    std::optional<First> first_;
    std::uint64_t heard_ = 0, counts_from_ = 0;  ///< numbers of reports
    std::uint64_t enqueued_ = 0;                 ///< count of this host only
};

}  // namespace lockstep
