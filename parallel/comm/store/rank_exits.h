// The ranks of a job that have left, and the meaning of their departure to others.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/parallel/comm/store.h"

namespace lockstep {

enum class RankExit : std::uint8_t {
    left,    ///< its work was complete
    failed,  ///< its work was not complete
    died
};

constexpr std::string_view rank_exits = "departed";

/// "3 died\n".
std::string format_rank_exit(int rank, RankExit how);
/// Adds the line of a rank. Throws the errors of the store.
void record_rank_exit(Store& job, int rank, RankExit how);
/// The departure of a rank according to `lines`; nullopt if it has not left.
std::optional<RankExit> rank_exit_of(std::string_view lines, int rank);
/// "died".
std::string_view name_of(RankExit how);

// Failure state of a job, shared by all of its groups in this process.

/// Set by the first group that fails. Then destructors of groups and of the rendezvous do not wait for other ranks: a
/// rank that has not answered by the deadline will not answer later.
class JobFailure {
public:
    void note() { noted_ = true; }
    bool noted() const { return noted_; }
    /// Time that a leaving rank waits for others, which is `usual` in a job that has not failed.
    std::chrono::milliseconds patience(std::chrono::milliseconds usual) const {
        return noted_ ? std::chrono::milliseconds(100) : usual;
    }

private:
    std::atomic<bool> noted_{false};
};

}  // namespace lockstep
