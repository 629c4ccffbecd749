#include "lockstep/samples/apps/program/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "lockstep/runtime/log.h"

namespace program {

namespace {

std::string clock_text(double seconds) {
    const auto whole = static_cast<std::int64_t>(std::max(0.0, seconds));
    if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
    return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

/// Columns of the terminal, whose size may change at any time.
std::size_t columns() {
    winsize size{};
    return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

bool is_terminal() {
    const char* kind = std::getenv("TERM");
    if (std::getenv("OMPI_COMM_WORLD_SIZE")) return false;  // mpirun forwards output unchanged
    return ::isatty(STDOUT_FILENO) == 1 && kind && std::string(kind) != "dumb";
}

}  // namespace

std::string rate_text(double per_second, const std::string& unit) {
    return fmt::format("{:.{}f} {}/s", per_second, per_second < 10 ? 1 : 0, unit);
}

Progress::Progress(bool quiet, std::uint64_t epochs, std::int64_t total, std::int64_t rows, std::string unit)
    : quiet_(quiet),
      terminal_(is_terminal()),
      epochs_(epochs),
      total_(total),
      epoch_rows_(rows),
      unit_(std::move(unit)) {}

Progress::~Progress() { clear(); }

void Progress::step(std::uint64_t epoch, std::int64_t rows_done, double rows_per_second, double loss) {
    const auto now = Clock::now();
    ++done_;
    epoch_ = epoch;
    rows_done_ = rows_done;
    rows_per_second_ = rows_per_second;
    // Smoothed, because losses of single batches fluctuate.
    loss_ = done_ == 1 ? loss : 0.95 * loss_ + 0.05 * loss;
    if (quiet_ || !terminal_) return;
    if (now - drawn_ < std::chrono::milliseconds(100) && done_ < total_) return;
    drawn_ = now;
    draw();
}

void Progress::draw() {
    const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
    const double part = total_ > 0 ? std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_)) : 1.0;
    const std::string epoch = fmt::format("epoch {}/{}", epoch_ + 1, epochs_),
                      loss = fmt::format("  loss {:.4f}", loss_),
                      rows = fmt::format("  {}/{} {}", rows_done_, epoch_rows_, unit_);
    const std::string left = fmt::format("  {} left", clock_text(part > 0 ? seconds * (1 - part) / part : 0));
    const std::string rate = rows_per_second_ > 0 ? "  " + rate_text(rows_per_second_, unit_) : "";

    // The last column stays free, because a line that fills it wraps on some terminals. The bar uses the columns that
    // the figures leave.
    const std::size_t room = columns() - 1;
    std::string text = epoch + rows + loss + rate + left;
    if (text.size() > room) text = epoch + loss + rate + left;
    if (text.size() > room) text = epoch + loss + left;
    if (text.size() > room) text = epoch + left;
    constexpr std::size_t widest = 40, narrowest = 4, frame = 3;
    if (room >= text.size() + frame + narrowest) {
        const std::size_t width = std::min(widest, room - text.size() - frame);
        const auto filled = static_cast<std::size_t>(part * static_cast<double>(width));
        text = "[" + std::string(filled, '#') + std::string(width - filled, '.') + "] " + text;
    } else {
        text.resize(std::min(room, text.size()));
    }
    std::fputs((erasure() + text).c_str(), stdout);
    std::fflush(stdout);
    shown_ = text.size();
}

std::string Progress::erasure() const {
    if (shown_ == 0) return "";
    // A terminal that has become narrower shows the bar on several lines.
    std::string text;
    for (std::size_t i = 0; i < (shown_ - 1) / columns(); ++i) text += "\033[A";
    return text + "\r\033[J";
}

void Progress::clear() {
    std::fputs(erasure().c_str(), stdout);
    std::fflush(stdout);
    shown_ = 0;
}

void Progress::line(const std::string& text) {
    if (quiet_) return;
    clear();
    std::puts(text.c_str());
    if (std::fflush(stdout) == 0 || std::exchange(reported_loss_, true)) return;
    lockstep::warn(std::string("cannot write to standard output: ") + std::strerror(errno) + "; training continues");
}

}  // namespace program
