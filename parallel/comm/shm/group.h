// The ranks of a group that share memory: how they map it, wait for each other, and detect the death of a rank.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/group/transport.h"
#include "lockstep/parallel/comm/shm/segment.h"
#include "lockstep/parallel/comm/store/sockets.h"

namespace lockstep::shm {

/// `end` and `failure` may be called from any thread; the rest from one at a time. Everything throws TransportError.
class Group {
public:
    /// Returns when all ranks of `info` have mapped each other's memory.
    explicit Group(const GroupInfo& info);
    ~Group() { leave(); }
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;

    int rank() const { return rank_; }
    int size() const { return static_cast<int>(segments_.size()); }
    /// The rank's name in messages: see GroupInfo::names.
    int called(int rank) const { return names_.empty() ? rank : names_[static_cast<std::size_t>(rank)]; }
    Header& header(int rank) const { return segment(rank).header(); }
    Header::Progress& progress(int rank) const { return header(rank).progress; }
    std::byte* slot(int rank, std::uint64_t round) const { return segment(rank).slot(round); }
    Ring& ring(int from, int to) const { return segment(from).ring(to); }

    /// Begins a collective: publishes this rank's progress.
    void begin_call();
    /// Waits until a counter of `peer`'s progress is at least `value`.
    void wait(int peer, Counter counter, std::uint64_t value, Deadline deadline,
              const std::function<void()>& meanwhile) const {
        if (progress(peer)[counter].load(std::memory_order_acquire) < value)
            wait_long(peer, counter, value, deadline, meanwhile);
    }
    /// Sets a counter of this rank's progress and wakes the ranks that sleep on it.
    void advance(Counter counter, std::uint64_t value) const;
    /// Wakes `peer` if it sleeps, whatever it waits for.
    void nudge(int peer) const;

    /// Throws if the group was ended, here or by another rank.
    void require_alive() const {
        if (header(rank_).state.ended_by.load(std::memory_order_acquire) != 0) throw_end();
    }
    /// The reason why the group was ended, or which rank has died; empty if neither. May be called from any thread.
    std::string failure() const;
    /// Tells the other ranks that this one will send nothing more.
    void leave() const noexcept;
    /// "rank 2 has died", or empty. Checks every few milliseconds at most.
    std::string dead_ranks() const;
    bool has_left(int peer) const { return header(peer).state.left.load(std::memory_order_seq_cst) != 0; }
    bool has_failed(int peer) const {
        return header(peer).state.end.load(std::memory_order_seq_cst) > End::being_written;
    }
    /// Ends the group with an error of this rank.
    [[noreturn]] void fail(const std::string& reason) const;
    /// Ends the group on all ranks; the reason of the first call counts.
    void end(const std::string& reason, End kind) const noexcept;

private:
    struct Identity;

    const Segment& segment(int rank) const { return segments_[static_cast<std::size_t>(rank)]; }
    void join(const GroupInfo& info);
    void map_peer(int peer, const Identity& identity);
    std::vector<Identity> meet(const GroupInfo& info, const Descriptor& file, Deadline deadline);
    void decide_spin();
    void wake(int peer) const;
    void wait_long(int peer, Counter counter, std::uint64_t value, Deadline deadline,
                   const std::function<void()>& meanwhile) const;
    void sleep(int peer, Counter counter, std::uint64_t value, Deadline deadline) const;
    /// The rank that `peer` is blocked on; -1: it does not wait, or could continue.
    int awaited_by(int peer) const;
    int held_up_by(int peer) const;
    std::vector<int> not_arrived() const;
    std::string reason_of_end() const;
    [[noreturn]] void throw_end() const { throw TransportError(reason_of_end()); }
    std::string deaths() const;
    [[noreturn]] void throw_late(int peer) const;

    std::string called(const std::vector<int>& ranks) const;

    int rank_;
    std::vector<int> names_;
    std::function<std::string()> verdict_;  ///< see GroupInfo
    std::vector<Segment> segments_;
    std::vector<Descriptor> processes_;  ///< one per rank, readable once it is dead; none for this rank
    std::chrono::microseconds spin_{0};  ///< time before this rank sleeps
    mutable Deadline watched_;
};

}  // namespace lockstep::shm
