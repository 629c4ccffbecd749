// Progress of training: a bar on a terminal, plain lines elsewhere, nothing with --quiet.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace program {

/// "512 samples/s", "1.4 images/s".
std::string rate_text(double per_second, const std::string& unit);

class Progress {
public:
    /// `epochs`: number of epochs of the run; `total`: steps from now to the end; `rows`: rows per epoch, named `unit`.
    Progress(bool quiet, std::uint64_t epochs, std::int64_t total, std::int64_t rows, std::string unit);
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    /// A step of `epoch` (from 0) and `rows_done` rows of the epoch are complete. `rows_per_second` excludes
    /// evaluations and is 0 if unknown; the time left includes them.
    void step(std::uint64_t epoch, std::int64_t rows_done, double rows_per_second, double loss);
    /// Prints a permanent line.
    void line(const std::string& text);

private:
    using Clock = std::chrono::steady_clock;
    void draw();
    /// Characters that erase the bar.
    std::string erasure() const;
    void clear();

    bool quiet_, terminal_;
    bool reported_loss_ = false;  // whether lost lines were reported
    std::uint64_t epochs_;
    std::int64_t total_, done_ = 0;
    std::int64_t epoch_rows_, rows_done_ = 0;
    std::string unit_;
    std::uint64_t epoch_ = 0;
    double loss_ = 0, rows_per_second_ = 0;
    Clock::time_point began_ = Clock::now(), drawn_{};
    std::size_t shown_ = 0;  // characters of the bar on the terminal
};

}  // namespace program
