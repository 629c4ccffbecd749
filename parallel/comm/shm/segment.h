// Layout of the memory that each rank of a group shares with the others. Unless stated otherwise, it is written by one
// rank and read by the others; only atomics are accessed by two at the same time.
#pragma once

#include <sched.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lockstep/parallel/comm/store/sockets.h"

namespace lockstep::shm {

constexpr std::size_t cache_line = 64;

/// Collectives run in rounds, numbered from 0 for the life of the group and equal on all ranks. A rank's data of round
/// k is in its slot k % slots until all ranks have taken it.
constexpr std::uint64_t slots = 4;
constexpr std::size_t slot_bytes = std::size_t{128} << 10;
/// Size of the unreceived messages from one rank to another.
constexpr std::size_t ring_bytes = std::size_t{128} << 10;
constexpr std::size_t longest_reason = 500;

/// How a group was ended, and how its reason is to be read.
enum class End : std::uint32_t { none, being_written, aborted, failed };

/// Counters of a rank's progress, on which others wait.
enum class Counter : std::uint32_t {
    calls,    ///< calls begun; the first one is the setup
    written,  ///< rounds whose slots can be read
    taken     ///< rounds for which it no longer needs slots of other ranks
};

struct Header {
    std::uint64_t nonce;  ///< random: identifies the expected segment
    cpu_set_t cores;      ///< cores on which the rank may run

    struct alignas(cache_line) Progress {
        std::array<std::atomic<std::uint64_t>, 3> counters;
        std::atomic<std::uint64_t>& operator[](Counter which) { return counters[static_cast<std::size_t>(which)]; }
        /// By slot: the number of rounds of a call if only this rank knows it.
        std::array<std::atomic<std::uint64_t>, slots> rounds;
    } progress;

    /// The rank sleeps on it. Others increment `rings` and wake it.
    struct alignas(cache_line) Bell {
        std::atomic<std::uint32_t> rings;
        /// 1 + the rank whose progress it sleeps for; 0: it is awake.
        std::atomic<std::uint32_t> sleeping_for;
    } bell;

    /// The condition that it has waited on for a long time, for ranks that look for the cause of a delay.
    struct alignas(cache_line) Waiting {
        std::atomic<std::uint32_t> peer;  ///< 1 + rank; 0: none
        std::atomic<Counter> counter;
        std::atomic<std::uint64_t> value;
    } waiting;

    struct alignas(cache_line) State {
        std::atomic<std::uint32_t> left;
        /// 1 + the rank whose `reason` ended the group for this one; written by that rank.
        std::atomic<std::uint32_t> ended_by;
        std::atomic<End> end;
        std::array<char, longest_reason + 1> reason;  ///< valid once `end` is aborted or failed
    } state;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<End>::is_always_lock_free);

/// Messages from the segment's rank to one other: bytes [tail, head) of an endless stream.
struct Ring {
    alignas(cache_line) std::atomic<std::uint64_t> head;
    alignas(cache_line) std::atomic<std::uint64_t> tail;  ///< written by the receiver
    alignas(cache_line) std::array<std::byte, ring_bytes> bytes;
};

/// A mapped segment. It has no name and is freed when the last process unmaps it.
class Segment {
public:
    Segment() noexcept = default;
    /// Creates one for a group of `size` ranks; `file` is the descriptor that other ranks open. Throws TransportError.
    Segment(int size, Descriptor& file);
    /// Maps another rank's. Throws TransportError if it is not one for `size` ranks with that nonce.
    Segment(int size, const Descriptor& file, std::uint64_t nonce);
    Segment(Segment&& other) noexcept;
    Segment& operator=(Segment&& other) noexcept;
    ~Segment();

    explicit operator bool() const { return base_ != nullptr; }
    Header& header() const;
    std::byte* slot(std::uint64_t round) const;
    Ring& ring(int to) const;

private:
    void map(const Descriptor& file);

    std::byte* base_ = nullptr;
    std::size_t bytes_ = 0;
};

}  // namespace lockstep::shm
