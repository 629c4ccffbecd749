// How a thread waits for something that it must look after by itself: briskly at first, then without heating the core.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace lockstep {

class Backoff {
public:
    /// `spins`: how often to look again at once; 0 where others need the core.
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
