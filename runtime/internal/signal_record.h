// Record of the signals sent to a process, and whether one of them must end it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace lockstep {

/// The caller passes the time. Lock-free, for signal handlers; constant-initialized.
class SignalRecord {
public:
    /// Records that `signal` arrived at `now`, which is positive. True if the process must end: the signal arrived
    /// StopSignals::coalesce_window or more after the first one, not counting advance warnings.
    bool add(int signal, std::chrono::milliseconds now) noexcept;
    /// The first signal, including advance warnings; 0 if none has arrived.
    int first() const noexcept { return first_; }
    void clear() noexcept;

private:
    std::atomic<int> first_{0};
    std::atomic<std::int64_t> came_{0};  ///< time of the first signal that is not an advance warning, in milliseconds
    static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free);
};

}  // namespace lockstep
