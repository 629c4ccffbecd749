#include "lockstep/parallel/comm/store/deadline.h"

#include <algorithm>
#include <thread>

namespace lockstep {

using std::chrono::milliseconds;

RunTime::Nanoseconds RunTime::at(Nanoseconds reading) noexcept {
    constexpr auto longest = static_cast<std::int32_t>(longest_step / resolution);
    const auto now = static_cast<std::uint32_t>(reading / resolution);
    State state = state_.load();
    for (;;) {
        const bool first = state.newest == 0 && state.missed == 0;
        const auto passed = static_cast<std::int32_t>(now - state.newest);  // negative if another thread read later
        if (!first && passed <= 0) break;
        const std::int32_t gap = first ? 0 : std::max(passed - longest, 0);
        const State next{now, state.missed + static_cast<std::uint32_t>(gap)};
        if (state_.compare_exchange_weak(state, next)) {
            state = next;
            break;
        }
    }
    return reading - state.missed * resolution;
}

RunClock::time_point RunClock::now() noexcept {
    static constinit RunTime time;
    return time_point(time.at(std::chrono::steady_clock::now().time_since_epoch()));
}

milliseconds bounded(milliseconds limit) {
    constexpr milliseconds ten_years = std::chrono::hours(24 * 3652);
    return std::clamp(limit, milliseconds(0), ten_years);
}

Deadline deadline_in(milliseconds limit) { return RunClock::now() + bounded(limit); }

milliseconds time_until(Deadline deadline) {
    return std::max(std::chrono::ceil<milliseconds>(deadline - RunClock::now()), milliseconds(0));
}

int poll_time(Deadline deadline) { return static_cast<int>(std::min(time_until(deadline), look_interval).count()); }

void pause_for(milliseconds time) {
    const Deadline end = deadline_in(time);
    for (milliseconds left = time; left.count() > 0; left = time_until(end))
        std::this_thread::sleep_for(std::min(left, look_interval));
}

}  // namespace lockstep
