#include "lockstep/runtime/stop_signals.h"

#include <ctime>

#include <atomic>
#include <cerrno>
#include <string>

#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

std::atomic<bool> exists{false};
std::atomic<int> first_signal{0};         // 0: none has come
std::atomic<std::int64_t> first_came{0};  // in milliseconds; of the first that is no warning
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free);

std::int64_t now() {
    timespec time{};
    ::clock_gettime(CLOCK_MONOTONIC, &time);
    return std::int64_t{time.tv_sec} * 1000 + time.tv_nsec / 1'000'000;
}

void keep(int signal) {
    const int error = errno;
    int none = 0;
    first_signal.compare_exchange_strong(none, signal);
    std::int64_t came = 0;
    if (!is_advance_warning(signal) && !first_came.compare_exchange_strong(came, now()) &&
        now() - came >= StopSignals::one_wish.count()) {
        ::signal(signal, SIG_DFL);
        ::raise(signal);  // ends this process as soon as the handler has returned
    }
    errno = error;
}

}  // namespace

struct StopSignals::Before {
    int signal;
    struct sigaction action;
};

StopSignals::StopSignals(const std::vector<int>& numbers) {
    if (exists.exchange(true)) throw InvalidArgument("StopSignals: an instance already exists; expected one at a time");
    first_signal = 0;
    first_came = 0;
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
    const int came = first_signal;
    return came != 0 ? std::optional<int>(came) : std::nullopt;
}

}  // namespace lockstep
