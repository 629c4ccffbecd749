#include "lockstep/runtime/internal/held_signal.h"

#include <cerrno>
#include <ctime>

namespace lockstep {

HeldSignal::HeldSignal(int signal) {
    sigset_t pending{};
    sigpending(&pending);
    was_pending_ = sigismember(&pending, signal) == 1;
    sigemptyset(&signal_);
    sigaddset(&signal_, signal);
    held_ = pthread_sigmask(SIG_BLOCK, &signal_, &before_) == 0 && sigismember(&before_, signal) == 0;
}

HeldSignal::~HeldSignal() {
    if (!held_) return;
    const int error = errno;
    const timespec at_once{};
    if (!was_pending_)
        while (sigtimedwait(&signal_, nullptr, &at_once) > 0) {
        }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
}

}  // namespace lockstep
