#include "lockstep/runtime/stop_signals.h"

#include <ctime>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/signal_record.h"

namespace lockstep {

namespace {

std::atomic<bool> exists{false};
constinit SignalRecord record;

std::chrono::milliseconds now() {
    timespec time{};
    ::clock_gettime(CLOCK_MONOTONIC, &time);
    return std::chrono::milliseconds(std::int64_t{time.tv_sec} * 1000 + time.tv_nsec / 1'000'000);
}

void keep(int signal) {
    const int error = errno;
    if (record.add(signal, now())) {
        ::signal(signal, SIG_DFL);
        ::raise(signal);  // ends this process as soon as the handler has returned
    }
    errno = error;
}

}  // namespace

bool SignalRecord::add(int signal, std::chrono::milliseconds now) noexcept {
    int none = 0;
    first_.compare_exchange_strong(none, signal);
    if (is_advance_warning(signal)) return false;
    std::int64_t came = 0;
    return !came_.compare_exchange_strong(came, now.count()) &&
           now.count() - came >= StopSignals::coalesce_window.count();
}

void SignalRecord::clear() noexcept {
    first_ = 0;
    came_ = 0;
}

struct StopSignals::Before {
    int signal;
    struct sigaction action;
};

StopSignals::StopSignals(const std::vector<int>& numbers) {
    if (exists.exchange(true)) throw InvalidArgument("StopSignals: an instance already exists; expected one at a time");
    record.clear();
    struct sigaction action {};
    action.sa_handler = keep;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    for (const int signal : numbers) {
        Before before{signal, {}};
        const bool known = ::sigaction(signal, nullptr, &before.action) == 0;
        if (known && (before.action.sa_handler == SIG_IGN || before.action.sa_handler == keep)) continue;
        if (!known || ::sigaction(signal, &action, nullptr) != 0) {
            restore();
            throw InvalidArgument("StopSignals: signal " + std::to_string(signal) +
                                  " cannot be caught; expected signals with a replaceable action");
        }
        before_.push_back(before);
    }
}

StopSignals::~StopSignals() { restore(); }

void StopSignals::restore() noexcept {
    for (const Before& before : before_) ::sigaction(before.signal, &before.action, nullptr);
    exists = false;
}

std::optional<int> StopSignals::signal() const noexcept {
    const int came = record.first();
    return came != 0 ? std::optional<int>(came) : std::nullopt;
}

}  // namespace lockstep
