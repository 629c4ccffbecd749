// Agreement of the processes of a job to end training before the same step, without extra communication.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>

namespace lockstep {

/// Every report of a step (across_ranks.cpp) says for each rank whether it wants to stop. The first one in which some
/// rank does decides: training ends a fixed number of reports after it, by which time every host has looked at it.
///
/// Hosts ask before each step; the stream of collectives hears the reports, one after another and in the order of the
/// steps.
class StopAgreement {
public:
    /// Encoded request. 0: continue; otherwise one plus a signal's number, or one for the program itself.
    using Wire = std::uint64_t;
    static Wire wire(std::optional<int> why) { return why ? static_cast<Wire>(*why) + 1 : 0; }
    static std::optional<int> from_wire(Wire why) {
        return why > 0 ? std::optional<int>(static_cast<int>(why - 1)) : std::nullopt;
    }

    // The stream of collectives.
    Wire own() const { return own_.load(std::memory_order_relaxed); }
    /// The largest of all ranks' in a report.
    void hear(Wire why) {
        const std::lock_guard guard(mutex_);
        const std::uint64_t report = heard_++;
        if (why != 0 && report >= counts_from_ && !first_) first_ = {report, why};
    }

    // The host.
    void want(std::optional<int> why) {
        if (const Wire more = wire(why); more > own()) own_.store(more, std::memory_order_relaxed);
    }
    /// A report was enqueued.
    void count() { ++enqueued_; }
    /// Why training ends before the step to come, which would have the next report.
    std::optional<int> before_next_report() {
        const std::lock_guard guard(mutex_);
        if (!first_ || first_->report + delay > enqueued_) return std::nullopt;
        return settled(first_->why);
    }
    /// The same when all ranks have just told each other `why`.
    std::optional<int> settle(Wire why) {
        const std::lock_guard guard(mutex_);
        return settled(why);
    }

private:
    /// Before report n is enqueued the host has looked at report n - 3: two steps are in flight with the one to come.
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
    std::uint64_t heard_ = 0, counts_from_ = 0;  ///< reports
    std::uint64_t enqueued_ = 0;                 ///< count of this host only
};

}  // namespace lockstep
