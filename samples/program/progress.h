// What a program prints while it trains: a bar on a terminal, plain lines elsewhere, nothing when it is to be quiet.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace program {

class Progress {
public:
    /// `total`: steps from now to the end.
    Progress(bool quiet, std::int64_t total);
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    void step(std::uint64_t epoch, std::int64_t rows, double loss);
    /// A line that stays.
    void line(const std::string& text);

private:
    using Clock = std::chrono::steady_clock;
    void draw();
    void clear();

    bool quiet_, terminal_;
    std::int64_t total_, done_ = 0, rows_ = 0;
    std::uint64_t epoch_ = 0;
    double loss_ = 0;
    Clock::time_point began_ = Clock::now(), drawn_{};
    bool shown_ = false;
};

}  // namespace program
