// Signals that system calls raise on an error, such as SIGPIPE: their default action ends the process.
#pragma once

#include <signal.h>

namespace lockstep {

/// While it exists, this thread's calls that would raise `signal` only return their error. A signal that was pending
/// before, or that the thread had blocked, is left to the program.
class HeldSignal {
public:
    explicit HeldSignal(int signal);
    ~HeldSignal();
    HeldSignal(const HeldSignal&) = delete;
    HeldSignal& operator=(const HeldSignal&) = delete;

private:
    sigset_t signal_{}, before_{};
    bool held_ = false, was_pending_ = false;
};

}  // namespace lockstep
