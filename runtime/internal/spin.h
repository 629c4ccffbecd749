// How a thread waits for what is about to come: it spins for a bounded time, then it sleeps.
//
// It does not call sched_yield: on a machine that is shared, a thread that yields again and again keeps a core busy for
// nothing, and takes it from programs that have work.
#pragma once

#include <chrono>

namespace lockstep {

/// Leaves the core's other hardware thread its share for a moment.
inline void pause_core() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

/// About what it costs to sleep and be woken: who spins so long, then sleeps, needs at most twice what is best.
constexpr std::chrono::microseconds worth_spinning(50);

/// One wait.
class Spin {
public:
    using Clock = std::chrono::steady_clock;

    explicit Spin(std::chrono::microseconds longest = worth_spinning) : longest_(longest) {}

    /// Looks for a moment whether it is `there`. False when it is not and the time is over.
    template <class There>
    bool again(There&& there) {
        for (int looks = 0; looks < 32; ++looks) {
            if (there()) return true;
            pause_core();
        }
        const auto now = Clock::now();
        if (end_ == Clock::time_point()) end_ = now + longest_;
        return now < end_;
    }

private:
    std::chrono::microseconds longest_;
    Clock::time_point end_;  ///< counted from when the first look has found nothing
};

}  // namespace lockstep
