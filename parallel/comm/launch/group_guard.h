// Ends the processes that ranks have started if the launcher is killed.
#pragma once

#include <sys/types.h>

#include "lockstep/parallel/comm/store/sockets.h"

namespace lockstep {

/// A process that waits for the end of this one and then kills the process groups that were registered. It has its own
/// session, so that signals to the launcher's group or terminal do not end it. Two cases are not covered: SIGKILL to
/// the guard itself, and processes that have left their rank's group (setsid, job control of a shell).
class GroupGuard {
public:
    static constexpr std::size_t most_groups = 1024;

    /// Throws Error when the system refuses a process or descriptors.
    GroupGuard();
    /// Ends the guard without killing a group.
    ~GroupGuard();
    GroupGuard(const GroupGuard&) = delete;
    GroupGuard& operator=(const GroupGuard&) = delete;

    /// A child that leads a group writes its number (a pid_t) here before it runs its program.
    int entrance() const { return writer_.get(); }

private:
    Descriptor writer_;
    pid_t process_ = -1;
};

}  // namespace lockstep
