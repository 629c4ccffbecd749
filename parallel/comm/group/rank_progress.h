// Progress reports of the ranks of a group, from which errors name missing ranks. Every rank writes the number of its
// operation to the store at intervals, and when it is blocked. A rank whose operation fails looks for ranks that are
// behind. A blocked rank also looks for ranks that have left without finishing their work, since not every backend
// reports that. A process that waits for others repeats this in the job's store, whatever the group. A rank that is
// behind because it waits itself is not to blame, and a stopped rank stops reporting.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lockstep/parallel/comm/store.h"
#include "lockstep/parallel/comm/store/deadline.h"

namespace lockstep {

class RankProgress {
public:
    /// `job`: the job's store, in which the group's keys begin with `prefix`; `job_ranks`: ranks of the group in the
    /// job. `abort` ends, from another thread, an operation that waits for a rank that has left.
    RankProgress(Store& job, std::string prefix, int rank, std::vector<int> job_ranks,
                 std::function<void(const std::string& reason)> abort);
    ~RankProgress();
    RankProgress(const RankProgress&) = delete;
    RankProgress& operator=(const RankProgress&) = delete;

    void begin(std::string_view operation, std::uint64_t number);
    void end();
    /// Begins waiting outside counted operations, for example in setup or for a message; calls may be nested.
    void begin_waiting();
    void end_waiting();
    /// The operation has succeeded, which implies that every rank had begun it: a rank that is missing later has
    /// reached at least this point.
    void end_with_all();
    /// After a failure in operation `number`: "ranks 1, 3 have not arrived yet (rank 1 was last seen in all_reduce
    /// number 4)", and the cause if another rank recorded one, or the store's error. Takes at most about one second.
    /// After a verdict it returns only the cause.
    std::string missing(std::string_view operation, std::uint64_t number) noexcept;
    /// After the deadline of the current operation: "rank 3 has not arrived (rank 3 was last seen in barrier number 6)"
    /// or "rank 3 has arrived but does not continue", for ranks that are not waiting themselves; empty if none is
    /// found. Takes about 2 s.
    std::string verdict() noexcept;
    /// Those of `ranks` that do not wait for others; all of them if the store does not answer. Takes about 2 s, or less
    /// if all wait.
    std::vector<int> not_waiting(std::vector<int> ranks) noexcept;
    /// This rank ends its part in the group. The first recorded reason is the cause.
    void note_cause(const std::string& reason) noexcept;
    /// An operation of this rank has failed. As `note_cause`, and no error names this rank as missing, in any group.
    void note_failure(const std::string& reason) noexcept;
    /// Why the group cannot be set up any more: a rank has failed or died, or the store has ended with its rank. Empty
    /// if unknown. From any thread; the store's answer is awaited briefly.
    std::string lost_in_setup() noexcept;
    /// This rank is connected to the others.
    void note_connected() { publish(connected, "1"); }
    /// After the group could not be set up: "ranks 1, 3 have not connected so far", only ranks that do not wait
    /// themselves. As `missing` otherwise.
    std::string unconnected() noexcept;

private:
    static constexpr std::string_view progress = "progress", connected = "connected";
    void watch();
    /// Reports in the job's store that this process waits.
    void publish_waiting();
    std::string waits_key(int rank) const;
    void publish(std::string_view key, const std::string& text);
    struct Seen {
        std::uint64_t number = 0;
        std::string operation;
    };
    struct Behind {
        std::vector<int> ranks;
        std::string last;  ///< last operation of the first of these ranks
    };
    /// The ranks that have not published `number` or more under `key` in time. All have reached at least `met`.
    Behind behind(std::string_view key, std::uint64_t number, const Seen& met);
    class Pulses;
    Seen seen(std::string_view key, int rank);
    /// The cause recorded by another rank.
    std::string cause();

    /// "rank 3 has died": the first rank that has not left in good order. Throws the errors of the store.
    std::string lost();
    std::string lost_in_operation() noexcept;

    const int rank_;
    const std::vector<int> job_ranks_;
    const std::function<void(const std::string& reason)> abort_;
    std::shared_ptr<Store> job_;
    std::unique_ptr<Store> store_;  ///< the group's own store
    std::mutex mutex_;
    std::condition_variable changed_;
    std::string operation_;
    std::uint64_t number_ = 0;  ///< the last operation that began
    bool under_way_ = false;
    int waiting_ = 0;  ///< number of waits begun and not ended
    Deadline waits_since_{};
    bool blamed_ = false;           ///< a verdict has been returned for the operation
    std::uint64_t published_ = 0;   ///< the last operation that was published
    std::uint64_t met_number_ = 0;  ///< the last operation that all ranks are known to have begun
    std::string met_operation_;
    Deadline began_{};
    bool stopping_ = false;
    std::thread watcher_;
};

}  // namespace lockstep
