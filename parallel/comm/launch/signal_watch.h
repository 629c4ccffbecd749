// Signals as something that poll can wait for.
#pragma once

#include <csignal>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/store/sockets.h"

namespace lockstep {

/// "signal 15 (SIGTERM)"
std::string name_of_signal(int signal);

/// While it exists, its signals are recorded for `take` instead of acting on this process. Ignored signals remain
/// ignored, as set by the parent process (nohup). Throws Error if another one exists.
class SignalWatch {
public:
    explicit SignalWatch(const std::vector<int>& signals);
    ~SignalWatch();
    SignalWatch(const SignalWatch&) = delete;
    SignalWatch& operator=(const SignalWatch&) = delete;

    /// Becomes readable when a signal has arrived.
    int descriptor() const { return read_.get(); }
    /// The signals since the last call.
    std::vector<int> take();
    /// For a child between fork and exec: the default action again for all of them. Async-signal-safe.
    void restore_defaults() const;

private:
    struct Kept {
        int signal;
        struct sigaction before;
    };
    Descriptor read_, write_;
    std::vector<Kept> kept_;
};

}  // namespace lockstep
