// Detection of the ranks that share a host.
#pragma once

#include <string>
#include <vector>

#include "lockstep/parallel/comm/group/transport.h"
#include "lockstep/parallel/comm/store/deadline.h"

namespace lockstep {

/// The same for processes that see each other in /proc: those of one machine and one PID namespace. Empty where /proc
/// does not tell. Throws TransportError where only a limit of descriptors or memory keeps this process from reading it.
std::string process_space();
/// The same for processes of one running kernel, whose clocks are one. A rank that cannot tell is a machine by itself.
std::string machine_of(int rank);
/// The first line of a file of /proc; empty if it has none. Throws as `process_space`.
std::string line_of_proc(const std::string& file);

/// The value of `peer` under `key` in the group's store. Waits for it. Throws TransportError if the value is not set by
/// `deadline` or the peer has left, and the errors of the store.
std::string entry_of(const GroupInfo& info, std::string_view key, int peer, Deadline deadline);

/// Every rank of `info` says something about itself in its store, under `key`; returns what all say, in order of
/// ranks. Throws as `entry_of`.
std::vector<std::string> introduce(const GroupInfo& info, std::string_view key, const std::string& own,
                                   Deadline deadline);

/// The host of each rank, numbered from 0 in order of ranks. On one host are ranks that share a process space and have
/// the same LOCKSTEP_HOST_ID, if any. All ranks of `info` have to call it. Throws as `introduce`.
std::vector<int> find_hosts(const GroupInfo& info, Deadline deadline);

/// The hosts of a group's ranks.
class HostLayout {
public:
    /// `hosts`: of each rank, as find_hosts returns them; empty: all on one.
    HostLayout(const std::vector<int>& hosts, int size);

    int hosts() const { return static_cast<int>(ranks_.size()); }
    int host_of(int rank) const { return host_[static_cast<std::size_t>(rank)]; }
    const std::vector<int>& ranks_on(int host) const { return ranks_[static_cast<std::size_t>(host)]; }
    /// Among the ranks of its host.
    int position_of(int rank) const { return position_[static_cast<std::size_t>(rank)]; }
    /// Whether the ranks of every host follow each other, host by host.
    bool in_order() const { return in_order_; }
    /// Whether all hosts have as many ranks.
    bool even() const;

private:
    std::vector<int> host_, position_;
    std::vector<std::vector<int>> ranks_;
    bool in_order_ = true;
};

}  // namespace lockstep
