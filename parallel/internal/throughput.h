// Rate of a training loop.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace lockstep {

/// Measures rows per second of training. Excludes the first two steps (tracing, first allocations) and pauses.
class Throughput {
public:
    void resume() { began_ = Clock::now(); }
    void pause() {
        seconds_ = seconds();
        began_.reset();
    }
    /// Counts an enqueued step. True if counting begins now: wait for the devices, then call `resume`.
    bool step() { return ++enqueued_ == warm_up; }
    /// Counts the rows of a completed step. Counting enqueued rows would make the rate of a few steps too high.
    void done(std::int64_t rows) {
        if (++done_ > warm_up) rows_ += rows;
    }
    /// 0 if nothing has been counted.
    double rows_per_second() const { return seconds() > 0 ? static_cast<double>(rows_) / seconds() : 0; }

private:
    using Clock = std::chrono::steady_clock;
    static constexpr std::int64_t warm_up = 2;
    /// Including the time since `resume`, for calls between two steps.
    double seconds() const {
        return enqueued_ >= warm_up && began_ ? seconds_ + std::chrono::duration<double>(Clock::now() - *began_).count()
                                              : seconds_;
    }
    std::optional<Clock::time_point> began_;  // empty during a pause
    double seconds_ = 0;
    std::int64_t rows_ = 0, enqueued_ = 0, done_ = 0;
};

}  // namespace lockstep
