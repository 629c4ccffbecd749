// Detection of the ranks that share a host.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/group/transport.h"
#include "lockstep/parallel/comm/store/deadline.h"

namespace lockstep {

/// Resources that two processes of one host share.
enum class HostScope : std::uint8_t {
    kernel,     ///< the running kernel, including its clock
    processes,  ///< also the PID namespace: they see each other in /proc
    network     ///< also the network namespace: they share a loopback interface
};
/// Equal for two processes that share `scope`. Empty if /proc does not identify the host. Throws TransportError if only
/// a limit of descriptors or memory prevents this process from reading it.
std::string host_identity(HostScope scope);
/// As above, but a rank that cannot identify its host counts as a separate host.
std::string host_identity(HostScope scope, int rank);
/// The first line of a file of /proc; empty if the file has none. Throws as `host_identity`.
std::string line_of_proc(const std::string& file);

/// The value of `peer` under `key` in the group's store. Waits for it. Throws TransportError if the value is not set by
/// `deadline` or the peer has left, and the errors of the store.
std::string entry_of(const GroupInfo& info, std::string_view key, int peer, Deadline deadline);

/// Every rank of `info` publishes a value in the group's store, under `key`. Returns all values in order of ranks.
/// Throws as `entry_of`.
std::vector<std::string> introduce(const GroupInfo& info, std::string_view key, const std::string& own,
                                   Deadline deadline);

/// The host of each rank, numbered from 0 in order of ranks. Ranks are on one host if they share a PID namespace and
/// have the same LOCKSTEP_HOST_ID, if it is set. All ranks of `info` must call it. Throws as `introduce`.
std::vector<int> find_hosts(const GroupInfo& info, Deadline deadline);

/// The hosts of a group's ranks.
class HostLayout {
public:
    /// `hosts`: host of each rank, as find_hosts returns them; empty: all ranks are on one.
    HostLayout(const std::vector<int>& hosts, int size);

    int hosts() const { return static_cast<int>(ranks_.size()); }
    int host_of(int rank) const { return host_[static_cast<std::size_t>(rank)]; }
    const std::vector<int>& ranks_on(int host) const { return ranks_[static_cast<std::size_t>(host)]; }
    /// Position among the ranks of its host.
    int position_of(int rank) const { return position_[static_cast<std::size_t>(rank)]; }
    /// Whether the ranks of every host are consecutive, host by host.
    bool in_order() const { return in_order_; }
    /// Whether all hosts have the same number of ranks.
    bool even() const;

private:
    std::vector<int> host_, position_;
    std::vector<std::vector<int>> ranks_;
    bool in_order_ = true;
};

}  // namespace lockstep
