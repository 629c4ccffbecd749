// One process of a job: from fork to the moment at which it is reaped.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/launch/signal_watch.h"
#include "lockstep/parallel/comm/store/sockets.h"

namespace lockstep {

/// Everything that must be ready before the fork: after it only what is async-signal-safe may be called.
struct ChildSpec {
    std::function<int()> function = {};  ///< called instead of a program; its result is the exit status
    std::filesystem::path program = {};
    std::vector<std::string> arguments = {};    ///< with the name in front
    std::vector<std::string> environment = {};  ///< "NAME=value"
    std::vector<int> cores = {};                ///< that it may run on; none: as this process
    int out = 1, err = 2;                       ///< its standard output and error; they stay the caller's
    int guard = -1;  ///< entrance of a GroupGuard, which is told of the child; -1: none; remains the caller's
};

/// A process that leads its own process group and dies when the thread that started it does. Its number is reserved
/// until this object is destroyed, so that signals reach no other process.
class Child {
public:
    /// Returns when it runs the program, or the function. Throws InvalidArgument when the program cannot be executed,
    /// Error when the system refuses a process.
    Child(const ChildSpec& spec, const SignalWatch& signals);
    /// Ends it with its group, if it lives.
    ~Child();
    Child(Child&& other) noexcept;
    Child& operator=(Child&&) = delete;

    pid_t process() const { return process_; }
    /// Has it ended? Does not wait.
    bool ended();
    /// Once it has: as `RankFailure` has them.
    int exit_status() const { return exit_status_; }
    int signal() const { return signal_; }
    /// The signal that has stopped it and has not been undone; 0: none.
    int stopped_by() const;
    bool failed() const { return ended_ && (exit_status_ != 0 || signal_ != 0); }
    /// To it and its group.
    void send(int signal) const;

private:
    pid_t process_ = -1;
    bool ended_ = false;
    int exit_status_ = 0, signal_ = 0;
};

}  // namespace lockstep
