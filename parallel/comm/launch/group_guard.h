// What ranks have started ends, too, when the launcher is killed and cannot see to it.
#pragma once

#include <sys/types.h>

#include "lockstep/parallel/comm/store/sockets.h"

namespace lockstep {

/// A process that waits for the end of this one and then kills the process groups that it was told of. It has a session
/// of its own, so that what ends the launcher's group or terminal does not end it. Two things get past it: a SIGKILL of
/// its own, and processes that have left their rank's group (setsid, job control of a shell).
class GroupGuard {
public:
    static constexpr std::size_t most_groups = 1024;

    /// Throws Error when the system refuses a process or descriptors.
    GroupGuard();
    /// Ends it; it kills nobody.
    ~GroupGuard();
    GroupGuard(const GroupGuard&) = delete;
    GroupGuard& operator=(const GroupGuard&) = delete;

    /// Where a child that leads a group writes its number (a pid_t), before it runs its program.
    int entrance() const { return writer_.get(); }

private:
    Descriptor writer_;
    pid_t process_ = -1;
};

}  // namespace lockstep
