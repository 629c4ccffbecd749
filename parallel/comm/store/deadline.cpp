#include "lockstep/parallel/comm/store/deadline.h"

#include <algorithm>
#include <thread>

namespace lockstep {

using std::chrono::milliseconds;

RunTime::Nanoseconds RunTime::at(Nanoseconds reading) noexcept {
    const std::int64_t now = reading.count();
    std::int64_t last = last_.load();
    if (now > last) {
        const std::int64_t missed = std::max<std::int64_t>(now - last - longest_step.count(), 0);
        // In this order: a thread that sees the new reading must see the time missed before it. If another thread was
        // first, the time is subtracted again; until then a deadline only seems further away.
        if (missed > 0) missed_.fetch_add(missed);
        if (!last_.compare_exchange_strong(last, now) && missed > 0) missed_.fetch_sub(missed);
    }
    return Nanoseconds(now - missed_.load());
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
