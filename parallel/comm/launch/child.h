// Processes that the launcher starts, and the guard that ends their children.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/launch/signal_watch.h"
#include "lockstep/parallel/comm/store/sockets.h"

namespace lockstep {

/// Everything must be prepared before the fork: after it only async-signal-safe functions may be called.
struct ChildSpec {
    std::function<int()> function = {};  ///< called instead of a program; its result is the exit status
    std::filesystem::path program = {};
    std::vector<std::string> arguments = {};    ///< including the program's name
    std::vector<std::string> environment = {};  ///< "NAME=value"
    std::vector<int> cores = {};                ///< cores that it may run on; empty: as this process
    int out = 1, err = 2;                       ///< its standard output and error; owned by the caller
    int guard = -1;  ///< write_fd of a ProcessReaper, which registers the child; -1: none; owned by the caller
};

/// A process that leads its own process group and is killed when the thread that started it ends. Its PID is reserved
/// until this object is destroyed, so that signals reach no other process.
class Child {
public:
    /// Returns when it runs the program, or the function. Throws InvalidArgument if the program cannot be executed,
    /// Error if the system refuses to start a process.
    Child(const ChildSpec& spec, const SignalWatch& signals);
    /// Ends it and its group, if it is alive.
    ~Child();
    Child(Child&& other) noexcept;
    Child& operator=(Child&&) = delete;

    pid_t process() const { return process_; }
    /// Whether it has ended. Does not wait.
    bool ended();
    /// Valid after its end, as in `RankFailure`.
    int exit_status() const { return exit_status_; }
    int signal() const { return signal_; }
    /// The signal that has stopped it, unless it has been continued; 0: none.
    int stopped_by() const;
    bool failed() const { return ended_ && (exit_status_ != 0 || signal_ != 0); }
    /// Sends a signal to it and its group.
    void send(int signal) const;

private:
    pid_t process_ = -1;
    bool ended_ = false;
    int exit_status_ = 0, signal_ = 0;
};

// Ends the processes that ranks have started if the launcher is killed.

/// A process that waits for the end of this one and then kills the process groups that were registered. It has its own
/// session, so that signals to the launcher's group or terminal do not end it. Two cases are not covered: SIGKILL to
/// the guard itself, and processes that have left their rank's group (setsid, job control of a shell).
class ProcessReaper {
public:
    static constexpr std::size_t max_groups = 1024;

    /// Throws Error if the system refuses a process or descriptors.
    ProcessReaper();
    /// Ends the guard without killing a group.
    ~ProcessReaper();
    ProcessReaper(const ProcessReaper&) = delete;
    ProcessReaper& operator=(const ProcessReaper&) = delete;

    /// A child that leads a group writes its number (a pid_t) here before it runs its program.
    int write_fd() const { return writer_.get(); }

private:
    Descriptor writer_;
    pid_t process_ = -1;
};

}  // namespace lockstep
