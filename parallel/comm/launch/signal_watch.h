// Signals in a form that poll can wait for.
#pragma once

#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/comm/store/sockets.h"

namespace lockstep {

// Pipes between a launcher and the processes that it starts.

enum class PipeEnds : bool { reader_at_once, both_at_once };
/// Reading and writing end; those named return at once instead of waiting. Closed by exec, and never one of the
/// standard streams, even if those are closed. Throws Error.
std::pair<Descriptor, Descriptor> make_pipe(PipeEnds at_once);

/// Duplicates the descriptor above those of the standard streams, which children are given. Throws Error.
Descriptor above_standard_streams(const Descriptor& low);

/// Throws Error: the system has refused `what`, with the reason in errno.
[[noreturn]] void refuse_launch(const char* what);

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
    /// For a child between fork and exec: restores the default action for all of them. Async-signal-safe.
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
