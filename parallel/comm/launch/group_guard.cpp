#include "lockstep/parallel/comm/launch/group_guard.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "lockstep/parallel/comm/launch/pipe.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

/// In the guard, to its end. `parent`: a descriptor that is readable once the launcher is dead, or -1, where the kernel
/// has none; then the pipe's end tells, unless the launcher's other children have it too. Nothing here allocates or
/// locks.
[[noreturn]] void stand_guard(int told, int parent) {
    constexpr int in = 0, launcher = 1;
    setsid();
    prctl(PR_SET_NAME, "lockstep-guard");
    // Files of the launcher would stay open with it.
    if (dup2(told, in) < 0) _exit(1);
    const bool watches = parent >= 0 && dup2(parent, launcher) == launcher;
    close_range(watches ? launcher + 1 : launcher, ~0U, 0);
    std::array<pid_t, GroupGuard::most_groups> groups{};
    std::size_t count = 0;
    for (bool alive = true; alive;) {
        std::array<pollfd, 2> entries{{{in, POLLIN, 0}, {watches ? launcher : -1, POLLIN, 0}}};
        if (poll(entries.data(), entries.size(), -1) < 0) continue;
        pid_t group = 0;
        ssize_t got = 0;
        while ((got = read(in, &group, sizeof group)) == sizeof group)
            if (count < groups.size()) groups[count++] = group;
        alive = got != 0 && entries[1].revents == 0;
    }
    for (std::size_t i = 0; i < count; ++i) kill(-groups[i], SIGKILL);
    _exit(0);
}

}  // namespace

GroupGuard::GroupGuard() {
    auto [reader, writer] = make_pipe(PipeEnds::reader_at_once);
    const Descriptor self(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
    const Descriptor parent(self ? fcntl(self.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1) : -1);
    sigset_t all{}, before{};
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // for good in the guard
    process_ = fork();
    if (process_ == 0) stand_guard(reader.get(), parent.get());
    const int error = errno;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (process_ < 0)
        throw Error(fmt::format("launch: cannot create a process: {}; are there too many processes?", text_of(error)));
    writer_ = std::move(writer);
}

GroupGuard::~GroupGuard() {
    kill(process_, SIGKILL);
    while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
    }
}

}  // namespace lockstep
