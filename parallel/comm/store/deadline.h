// Deadlines of blocking calls, and the clock that measures them.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace lockstep {

/// Time during which a process ran, computed from readings of a steady clock. Between two readings it advances by at
/// most `longest_step`, give or take `resolution`: a longer gap means that the process was stopped (SIGSTOP, Ctrl-Z,
/// scontrol suspend) or was not scheduled. Lock-free, so that a child of fork() may use it at once.
class RunTime {
public:
    using Nanoseconds = std::chrono::nanoseconds;
    /// A power of 2, so that ticks of 32 bits continue at 0 after the largest. 417 days have as many ticks: without a
    /// reading for half of that time, the next gaps count.
    static constexpr Nanoseconds resolution{1 << 23};
    static constexpr Nanoseconds longest_step = 30 * resolution;  // 252 ms

    /// The run time at `reading`: nanoseconds, less those missed since the first reading.
    Nanoseconds at(Nanoseconds reading) noexcept;

private:
    /// The newest reading and the time missed, in ticks. Both are in one word: a thread that saw a gap counted twice,
    /// or not at all, would compute a deadline that is wrong by the length of the gap.
    struct State {
        std::uint32_t newest = 0, missed = 0;
    };
    std::atomic<State> state_{};
    static_assert(std::atomic<State>::is_always_lock_free);
};

/// The run time of this process. A thread that waits must read it at least every `look_interval`, or the time in
/// between is not counted.
class RunClock {
public:
    using duration = std::chrono::nanoseconds;
    using rep = duration::rep;
    using period = duration::period;
    using time_point = std::chrono::time_point<RunClock>;
    static constexpr bool is_steady = false;

    static time_point now() noexcept;
};

/// How long a waiting thread sleeps at most before it reads the clock again.
inline constexpr std::chrono::milliseconds look_interval(50);

/// The time by which a blocking call must have returned or thrown.
using Deadline = RunClock::time_point;

/// A limit of the user, from 0 to ten years: every other time can be added to it.
std::chrono::milliseconds bounded(std::chrono::milliseconds limit);
/// The time that is `limit`, bounded, from now.
Deadline deadline_in(std::chrono::milliseconds limit);
/// Milliseconds until `deadline`; at least 0.
std::chrono::milliseconds time_until(Deadline deadline);
/// For poll: as `time_until`, but at most `look_interval`.
int poll_time(Deadline deadline);
/// Sleeps for `time` of the process's run time.
void pause_for(std::chrono::milliseconds time);

// How a thread waits for a condition that it must poll: fast at first, then without loading the core.

class Backoff {
public:
    /// `spins`: number of immediate polls; 0 if others need the core.
    explicit Backoff(int spins) : spins_(spins) {}

    void pause() {
        using std::chrono::microseconds;
        if (spins_ > 0) {
            --spins_;
        } else if (yields_ > 0) {
            --yields_;
            ::sched_yield();
        } else {
            std::this_thread::sleep_for(sleep_);
            sleep_ = std::min(2 * sleep_, microseconds(1000));
        }
    }

private:
    int spins_, yields_ = 1000;
    std::chrono::microseconds sleep_{20};
};

}  // namespace lockstep
