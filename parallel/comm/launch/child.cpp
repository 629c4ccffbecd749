#include "lockstep/parallel/comm/launch/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <memory>
#include <thread>

#include "lockstep/parallel/comm/launch/signal_watch.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds time_to_exec(30000);
constexpr milliseconds time_to_die(5000);  // after SIGKILL

struct FreeSet {
    void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};

/// A mask of cores, made before the fork.
struct CoreMask {
    std::unique_ptr<cpu_set_t, FreeSet> set;
    std::size_t bytes = 0;

    explicit CoreMask(const std::vector<int>& cores) {
        if (cores.empty()) return;
        const int count = cores.back() + 1;
        bytes = CPU_ALLOC_SIZE(count);
        set.reset(CPU_ALLOC(count));
        if (!set) refuse_launch("no memory");
        CPU_ZERO_S(bytes, set.get());
        for (const int core : cores) CPU_SET_S(static_cast<std::size_t>(core), bytes, set.get());
    }
};

std::vector<char*> pointers_to(const std::vector<std::string>& words) {
    std::vector<char*> pointers;
    for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
    pointers.push_back(nullptr);
    return pointers;
}

/// Data for the child's side, prepared before the fork.
struct Prepared {
    const std::function<int()>* function;  // may be empty
    const char* program;
    char* const* arguments;
    char* const* environment;
    const CoreMask* cores;
    const SignalWatch* signals;
    const sigset_t* mask;
    pid_t parent;
    int input, out, err, guard, report;
};

/// Runs in the child. Returns only on failure, with errno. Nothing here allocates or locks except the function that is
/// called instead of a program.
void become(const Prepared& to) {
    setpgid(0, 0);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return;
    if (getppid() != to.parent) _exit(1);  // the parent died before prctl was called
    const pid_t own = getpid();
    if (to.guard >= 0 && write(to.guard, &own, sizeof own) != sizeof own) return;
    // A core that is offline or forbidden by a cpuset is not a reason to fail.
    if (to.cores->set) sched_setaffinity(0, to.cores->bytes, to.cores->set.get());
    if (dup2(to.input, STDIN_FILENO) < 0) return;
    if (to.out != STDOUT_FILENO && dup2(to.out, STDOUT_FILENO) < 0) return;
    if (to.err != STDERR_FILENO && dup2(to.err, STDERR_FILENO) < 0) return;
    to.signals->restore_defaults();
    sigprocmask(SIG_SETMASK, to.mask, nullptr);
    if (*to.function) {
        for (const int end : {to.report, to.guard, to.input})  // as exec does, because other processes wait for these
                                                               // ends
            if (end >= 0) close(end);
        environ = const_cast<char**>(to.environment);
        _exit((*to.function)());
    }
    execve(to.program, to.arguments, to.environment);
}

/// 0 if the program runs, otherwise the errno of the failure.
int report_of(const Descriptor& report) {
    const auto deadline = RunClock::now() + time_to_exec;
    for (;;) {
        int error = 0;
        const ssize_t count = read(report.get(), &error, sizeof error);
        if (count == 0) return 0;
        if (count == sizeof error) return error;
        if (count < 0 && errno != EAGAIN && errno != EINTR) return errno;
        pollfd entry{report.get(), POLLIN, 0};
        if (poll(&entry, 1, poll_time(deadline)) == 0 && RunClock::now() >= deadline) return ETIMEDOUT;
    }
}

}  // namespace

Child::Child(const ChildSpec& spec, const SignalWatch& signals) {
    const CoreMask cores(spec.cores);
    const std::vector<char*> arguments = pointers_to(spec.arguments), environment = pointers_to(spec.environment);
    const Descriptor nothing = above_standard_streams(Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)));
    auto [reader, writer] = make_pipe(PipeEnds::reader_at_once);
    sigset_t all{}, before{};
    sigfillset(&all);
    // Signals are blocked in between: this process's handlers must not run in the child.
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const Prepared prepared{
        &spec.function, spec.program.c_str(), arguments.data(), environment.data(), &cores,     &signals,    &before,
        getpid(),       nothing.get(),        spec.out,         spec.err,           spec.guard, writer.get()};
    process_ = fork();
    if (process_ == 0) {
        become(prepared);
        const int error = errno;
        [[maybe_unused]] const ssize_t written = write(prepared.report, &error, sizeof error);
        _exit(127);
    }
    const int fork_error = errno;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (process_ < 0) {
        errno = fork_error;
        refuse_launch("no process");
    }
    writer.reset();
    if (const int error = report_of(reader); error != 0) {
        Child unfinished(std::move(*this));
        throw InvalidArgument(fmt::format(
            "launch: {} cannot be executed: {}; expected a program, or a script with a '#!' line that names one",
            spec.program.string(), text_of(error)));
    }
}

Child::Child(Child&& other) noexcept
    : process_(std::exchange(other.process_, -1)),
      ended_(other.ended_),
      exit_status_(other.exit_status_),
      signal_(other.signal_) {}

Child::~Child() {
    if (process_ < 0) return;
    send(SIGKILL);
    // Reaped only now: until then its PID cannot be reused for another process or group.
    const auto deadline = RunClock::now() + time_to_die;
    while (waitpid(process_, nullptr, WNOHANG) == 0 && RunClock::now() < deadline)
        std::this_thread::sleep_for(milliseconds(1));
}

bool Child::ended() {
    if (ended_) return true;
    siginfo_t info{};
    const int status = waitid(P_PID, static_cast<id_t>(process_), &info, WEXITED | WNOHANG | WNOWAIT);
    if (status == 0 && info.si_pid == 0) return false;
    ended_ = true;
    if (status != 0) {  // this process has waited for it elsewhere: its status is lost
        exit_status_ = 255;
        return true;
    }
    (info.si_code == CLD_EXITED ? exit_status_ : signal_) = info.si_status;
    return true;
}

int Child::stopped_by() const {
    siginfo_t info{};
    const int status = waitid(P_PID, static_cast<id_t>(process_), &info, WSTOPPED | WNOHANG | WNOWAIT);
    return status == 0 && info.si_pid != 0 && info.si_code == CLD_STOPPED ? info.si_status : 0;
}

void Child::send(int signal) const { kill(-process_, signal); }

namespace {

/// Runs in the guard, to its end. `parent`: a descriptor that is readable once the launcher is dead, or -1 if the
/// kernel has none. Then the end of the pipe reports the death, unless the launcher's other children hold the pipe too.
/// Nothing here allocates or locks.
[[noreturn]] void reaper_main(int told, int parent) {
    constexpr int in = 0, launcher = 1;
    setsid();
    prctl(PR_SET_NAME, "lockstep-guard");
    // Otherwise files of the launcher would stay open.
    if (dup2(told, in) < 0) _exit(1);
    const bool watches = parent >= 0 && dup2(parent, launcher) == launcher;
    close_range(watches ? launcher + 1 : launcher, ~0U, 0);
    std::array<pid_t, ProcessReaper::max_groups> groups{};
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

ProcessReaper::ProcessReaper() {
    auto [reader, writer] = make_pipe(PipeEnds::reader_at_once);
    const Descriptor self(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
    const Descriptor parent(self ? fcntl(self.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1) : -1);
    sigset_t all{}, before{};
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // permanently in the guard
    process_ = fork();
    if (process_ == 0) reaper_main(reader.get(), parent.get());
    const int error = errno;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (process_ < 0) throw Error(fmt::format("launch: cannot create a process: {}", text_of(error)));
    writer_ = std::move(writer);
}

ProcessReaper::~ProcessReaper() {
    kill(process_, SIGKILL);
    while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
    }
}

}  // namespace lockstep
