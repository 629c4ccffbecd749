#include "lockstep/samples/program/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace program {

namespace {

std::string clock_text(double seconds) {
    const auto whole = static_cast<std::int64_t>(std::max(0.0, seconds));
    return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

}  // namespace

Progress::Progress(bool quiet, std::int64_t total)
    : quiet_(quiet), terminal_(::isatty(STDOUT_FILENO) == 1), total_(total) {}

Progress::~Progress() { clear(); }

void Progress::step(std::uint64_t epoch, std::int64_t rows, double loss) {
    ++done_;
    rows_ += rows;
    epoch_ = epoch;
    // Single batches jump; the eye wants the trend.
    loss_ = done_ == 1 ? loss : 0.95 * loss_ + 0.05 * loss;
    if (quiet_ || !terminal_) return;
    const auto now = Clock::now();
    if (now - drawn_ < std::chrono::milliseconds(100) && done_ < total_) return;
    drawn_ = now;
    draw();
}

void Progress::draw() {
    constexpr int width = 24;
    const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
    const double part = total_ > 0 ? std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_)) : 1.0;
    const int filled = static_cast<int>(part * width);
    std::string text =
        fmt::format("\r[{:#<{}}{:.<{}}] epoch {}  loss {:.4f}  {:.0f} samples/s  {} left ", "", filled, "",
                    width - filled, epoch_ + 1, loss_, static_cast<double>(rows_) / std::max(seconds, 1e-9),
                    clock_text(part > 0 ? seconds * (1 - part) / part : 0));
    std::fputs((text + "\033[K").c_str(), stdout);
    std::fflush(stdout);
    shown_ = true;
}

void Progress::clear() {
    if (!shown_) return;
    std::fputs("\r\033[K", stdout);
    std::fflush(stdout);
    shown_ = false;
}

void Progress::line(const std::string& text) {
    if (quiet_) return;
    clear();
    std::puts(text.c_str());
    std::fflush(stdout);
}

}  // namespace program
