#include "lockstep/parallel/comm/launch/signal_watch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "lockstep/runtime/error.h"

namespace lockstep {

void refuse_launch(const char* what) { throw Error(fmt::format("launch: {}: {}", what, text_of(errno))); }

Descriptor above_standard_streams(const Descriptor& low) {
    Descriptor high(fcntl(low.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
    if (!high) refuse_launch("no descriptor");
    return high;
}

std::pair<Descriptor, Descriptor> make_pipe(PipeEnds at_once) {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) refuse_launch("no pipe");
    const Descriptor low_reader(ends[0]), low_writer(ends[1]);
    Descriptor reader = above_standard_streams(low_reader), writer = above_standard_streams(low_writer);
    fcntl(reader.get(), F_SETFL, O_NONBLOCK);
    if (at_once == PipeEnds::both_at_once) fcntl(writer.get(), F_SETFL, O_NONBLOCK);
    return {std::move(reader), std::move(writer)};
}

namespace {

/// Descriptor that the handler writes to; -1: no watch exists.
std::atomic<int> target{-1};
static_assert(std::atomic<int>::is_always_lock_free);

void keep(int signal) {
    const int error = errno;
    const auto byte = static_cast<unsigned char>(signal);
    if (const int there = target.load(); there >= 0) {
        // A full pipe drops the signal: the reader has enough pending ones.
        [[maybe_unused]] const ssize_t written = write(there, &byte, 1);
    }
    errno = error;
}

}  // namespace

std::string name_of_signal(int signal) {
    const char* name = sigabbrev_np(signal);
    return name ? fmt::format("signal {} (SIG{})", signal, name) : fmt::format("signal {}", signal);
}

SignalWatch::SignalWatch(const std::vector<int>& signals) {
    auto [read, write] = make_pipe(PipeEnds::both_at_once);
    read_ = std::move(read);
    write_ = std::move(write);
    int nobody = -1;
    if (!target.compare_exchange_strong(nobody, write_.get()))
        throw Error("launch: another launch is running in this process");
    struct sigaction action {};
    action.sa_handler = keep;
    sigfillset(&action.sa_mask);
    action.sa_flags = SA_NOCLDSTOP;
    for (const int signal : signals) {
        struct sigaction before {};
        sigaction(signal, nullptr, &before);
        if (before.sa_handler == SIG_IGN && signal != SIGCHLD) continue;
        if (before.sa_handler == keep) continue;  // listed twice
        if (sigaction(signal, &action, nullptr) == 0) kept_.push_back({signal, before});
    }
}

SignalWatch::~SignalWatch() {
    for (const Kept& kept : kept_) sigaction(kept.signal, &kept.before, nullptr);
    target = -1;
}

std::vector<int> SignalWatch::take() {
    std::vector<int> signals;
    std::array<unsigned char, 64> bytes{};
    for (ssize_t count = 0; (count = ::read(read_.get(), bytes.data(), bytes.size())) > 0;)
        signals.insert(signals.end(), bytes.begin(), bytes.begin() + count);
    return signals;
}

void SignalWatch::restore_defaults() const {
    for (const Kept& kept : kept_) signal(kept.signal, SIG_DFL);
}

}  // namespace lockstep
