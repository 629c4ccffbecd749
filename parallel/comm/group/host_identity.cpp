#include "lockstep/parallel/comm/group/host_identity.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <optional>
#include <thread>

#include "lockstep/parallel/comm/store/sockets.h"

namespace lockstep {

namespace {

using std::chrono::milliseconds;

/// Without /proc, LOCKSTEP_HOST_ID decides.
std::string entry_for_hosts(int rank) {
    const char* id = std::getenv("LOCKSTEP_HOST_ID");
    const std::string given = id ? id : "";
    const std::string own =
        given.empty() ? host_identity(HostScope::processes, rank) : host_identity(HostScope::processes);
    return fmt::format("{}/{}", own, given);
}

}  // namespace

std::string line_of_proc(const std::string& file) {
    const Descriptor from(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
    if (!from && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
        throw TransportError(fmt::format("cannot read {}: {}", file, text_of(errno)));
    std::array<char, 4096> text{};
    const ssize_t length = from ? ::read(from.get(), text.data(), text.size()) : 0;
    const std::string all(text.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
    return all.substr(0, all.find('\n'));
}

std::string host_identity(HostScope scope) {
    const std::string boot = line_of_proc("/proc/sys/kernel/random/boot_id");
    if (boot.empty() || scope == HostScope::kernel) return boot;
    std::array<char, 64> space{};
    const ssize_t length = ::readlink(scope == HostScope::processes ? "/proc/self/ns/pid" : "/proc/self/ns/net",
                                      space.data(), space.size());
    if (length <= 0) return {};
    return boot + "/" + std::string(space.data(), static_cast<std::size_t>(length));
}

std::string host_identity(HostScope scope, int rank) {
    const std::string identity = host_identity(scope);
    return identity.empty() ? fmt::format("rank {}", rank) : identity;
}

std::string entry_of(const GroupInfo& info, std::string_view key, int peer, Deadline deadline) {
    const std::string name = fmt::format("{}/{}", key, peer);
    constexpr milliseconds longest(20);
    for (auto pause = milliseconds(1);; pause = std::min(2 * pause, longest)) {
        // In this order: an entry written before the rank left counts.
        const std::string gone = pause == longest && info.gone ? info.gone(info.called(peer)) : std::string();
        if (std::optional<std::string> text = info.store->try_get(name)) return std::move(*text);
        if (!gone.empty()) throw TransportError(gone);
        if (RunClock::now() >= deadline)
            throw TransportError(
                fmt::format("rank {} has not arrived within {} ms", info.called(peer), info.timeout.count()));
        std::this_thread::sleep_for(pause);
    }
}

std::vector<std::string> introduce(const GroupInfo& info, std::string_view key, const std::string& own,
                                   Deadline deadline) {
    info.store->set(fmt::format("{}/{}", key, info.rank), own);
    std::vector<std::string> all;
    for (int peer = 0; peer < info.size; ++peer)
        all.push_back(peer == info.rank ? own : entry_of(info, key, peer, deadline));
    return all;
}

std::vector<int> find_hosts(const GroupInfo& info, Deadline deadline) {
    std::map<std::string, int> numbers;
    std::vector<int> hosts;
    for (const std::string& identity : introduce(info, "host", entry_for_hosts(info.rank), deadline))
        hosts.push_back(numbers.emplace(identity, static_cast<int>(numbers.size())).first->second);
    return hosts;
}

HostLayout::HostLayout(const std::vector<int>& hosts, int size)
    : host_(hosts.empty() ? std::vector<int>(static_cast<std::size_t>(size), 0) : hosts) {
    for (std::size_t rank = 0; rank < host_.size(); ++rank) {
        const auto host = static_cast<std::size_t>(host_[rank]);
        if (ranks_.size() <= host) ranks_.resize(host + 1);
        position_.push_back(static_cast<int>(ranks_[host].size()));
        ranks_[host].push_back(static_cast<int>(rank));
        in_order_ = in_order_ && (rank == 0 || host_[rank - 1] <= host_[rank]);
    }
}

bool HostLayout::even() const {
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [&](const std::vector<int>& ranks) { return ranks.size() == ranks_.front().size(); });
}

}  // namespace lockstep
