// How the ranks of a group find each other's memory: through /proc, by the identity that each publishes in the store.
// No named object is created, so nothing can be left behind.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <sstream>

#include "lockstep/parallel/comm/group/host_identity.h"
#include "lockstep/parallel/comm/shm/group.h"

namespace lockstep::shm {

namespace {

/// The number of this process in the mounted /proc, which may be that of another PID namespace; 0: unknown.
pid_t number_in_proc() {
    std::array<char, 32> text{};
    const ssize_t length = readlink("/proc/self", text.data(), text.size() - 1);
    return length > 0 ? static_cast<pid_t>(std::strtol(text.data(), nullptr, 10)) : 0;
}

/// Start time of the process, in ticks since boot: together with its PID it identifies a process uniquely.
std::uint64_t start_time(pid_t process) {
    const std::string text = line_of_proc(fmt::format("/proc/{}/stat", process));
    std::string word;
    const auto end = text.rfind(')');  // end of the program's name, which may contain any character
    if (end == std::string::npos) return 0;
    std::istringstream words(text.substr(end + 1));
    for (int i = 0; i < 20; ++i) words >> word;
    std::uint64_t ticks = 0;
    words = std::istringstream(word);
    words >> ticks;
    return ticks;
}

}  // namespace

struct Group::Identity {
    std::string host;
    pid_t process = 0;  ///< its number in its PID namespace,
    pid_t entry = 0;    ///< and in /proc
    int file = -1;
    std::uint64_t start = 0, nonce = 0;

    std::string text() const { return fmt::format("{} {} {} {} {} {}", host, process, entry, file, start, nonce); }
    static Identity of(int rank, const std::string& text) {
        Identity result;
        std::istringstream words(text);
        if (words >> result.host >> result.process >> result.entry >> result.file >> result.start >> result.nonce)
            return result;
        throw TransportError(fmt::format(
            "rank {} uses another version or another backend; start all ranks with the same program", rank));
    }
};

void Group::join(const GroupInfo& info) {
    const Deadline deadline = deadline_in(info.timeout);
    Descriptor file;
    segments_[static_cast<std::size_t>(rank_)] = Segment(size(), file);
    processes_.resize(static_cast<std::size_t>(size()));
    const std::vector<Identity> ranks = meet(info, file, deadline);
    std::vector<int> elsewhere;
    for (int peer = 0; peer < size(); ++peer)
        if (ranks[static_cast<std::size_t>(peer)].host != ranks[static_cast<std::size_t>(rank_)].host)
            elsewhere.push_back(peer);
    if (!elsewhere.empty())
        throw TransportError(
            fmt::format("{} cannot share memory with this rank: it is on another host or in another container; use the "
                        "gloo backend",
                        called(elsewhere)));
    for (int peer = 0; peer < size(); ++peer)
        if (peer != rank_) map_peer(peer, ranks[static_cast<std::size_t>(peer)]);
    decide_spin();
    // When all ranks have reached this point, all have mapped this rank's memory, and the file can be closed.
    advance(Counter::calls, 1);
    for (int peer = 0; peer < size(); ++peer) wait(peer, Counter::calls, 1, deadline, {});
}

std::vector<Group::Identity> Group::meet(const GroupInfo& info, const Descriptor& file, Deadline deadline) {
    const std::string space = host_identity(HostScope::processes);
    if (space.empty()) throw TransportError("/proc does not identify this host; mount it, or use the gloo backend");
    const pid_t entry = number_in_proc();
    const Identity own{space, getpid(), entry, file.get(), start_time(entry), header(rank_).nonce};
    std::vector<Identity> ranks;
    for (const std::string& text : introduce(info, "shm", own.text(), deadline))
        ranks.push_back(Identity::of(called(static_cast<int>(ranks.size())), text));
    return ranks;
}

void Group::map_peer(int peer, const Identity& identity) {
    const auto index = static_cast<std::size_t>(peer);
    const int name = called(peer);
    Descriptor process(static_cast<int>(syscall(SYS_pidfd_open, identity.process, 0)));
    const int error = errno;
    if (!process && error != ESRCH)
        throw TransportError(fmt::format("cannot watch the process of rank {}: {}", name, text_of(error)));
    // In this order: if the PID had been reused, the start time would differ.
    if (!process || start_time(identity.entry) != identity.start)
        throw TransportError(fmt::format("rank {} has died", name));
    processes_[index] = std::move(process);
    const Descriptor file(
        open(fmt::format("/proc/{}/fd/{}", identity.entry, identity.file).c_str(), O_RDWR | O_CLOEXEC));
    if (!file) {
        const int why = errno;
        pollfd exited{processes_[index].get(), POLLIN, 0};  // a dying process closes its files before it ends
        if (poll(&exited, 1, why == ENOENT ? 200 : 0) > 0) throw TransportError(fmt::format("rank {} has died", name));
        const bool forbidden = why == EACCES || why == EPERM;
        throw TransportError(fmt::format(
            "cannot open the memory of rank {}: {}; {}", name, text_of(why),
            forbidden ? "all ranks must belong to the same user; otherwise use the gloo backend"
                      : "ranks must see each other in /proc (one PID namespace); otherwise use the gloo backend"));
    }
    try {
        segments_[index] = Segment(size(), file, identity.nonce);
    } catch (const TransportError& failure) {
        throw TransportError(fmt::format("rank {}: {}", name, failure.what()));
    }
}

}  // namespace lockstep::shm
