// Signals that a process was sent, and when one of them must end it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace lockstep {

/// Takes readings of a clock instead of reading one. Lock-free, for signal handlers; constant-initialized.
class SignalRecord {
public:
    /// Records that `signal` came at `now`, which is positive. True if the process must end: the signal came
    /// StopSignals::one_wish or more after the first one, advance warnings not counted.
    bool add(int signal, std::chrono::milliseconds now) noexcept;
    /// The first signal, also an advance warning; 0: none has come.
    int first() const noexcept { return first_; }
    void clear() noexcept;

private:
    std::atomic<int> first_{0};
    std::atomic<std::int64_t> came_{0};  ///< when the first one came that is no advance warning, in milliseconds
    static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free);
};

}  // namespace lockstep
