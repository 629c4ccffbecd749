#include "lockstep/parallel/comm/launch/signal_watch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "lockstep/parallel/comm/launch/pipe.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

/// Where the handler writes; -1: there is no watch.
std::atomic<int> target{-1};
static_assert(std::atomic<int>::is_always_lock_free);

void keep(int signal) {
    const int error = errno;
    const auto byte = static_cast<unsigned char>(signal);
    if (const int there = target.load(); there >= 0) {
        // A full pipe drops it: whoever reads has more than enough to do with those that are in it.
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
