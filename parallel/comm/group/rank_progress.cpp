#include "lockstep/parallel/comm/group/rank_progress.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <sstream>
#include <utility>

#include "lockstep/parallel/comm/store/rank_exits.h"
#include "lockstep/parallel/comm/store/store_protocol.h"

namespace lockstep {

namespace {

using std::chrono::milliseconds;

/// An operation that takes longer than this is published.
constexpr milliseconds publication_threshold(100);
/// Interval at which a rank that makes progress publishes its operation.
constexpr milliseconds interval(400);
/// The stopped rank may be the one that holds the store, so no call waits longer for its answer.
constexpr milliseconds store_timeout(250);
/// Longer, because many ranks may connect at once.
constexpr milliseconds time_to_reach_store(2000);
/// Grace period after a rank has left: an operation in which it took part may still complete, and a backend's own error
/// is more precise.
constexpr milliseconds time_to_finish(1000);
/// Time after which the other ranks have published their progress.
constexpr milliseconds time_to_tell(800);
/// Maximum time between two reports of a waiting process: several times `interval`.
constexpr milliseconds time_of_pulses(2000);
/// Written instead of a pulse by a process that has failed and no longer waits.
constexpr std::string_view gave_up = "gave up";

std::atomic<std::uint64_t> pulses{0};  // number of this process's pulses

std::string ranks_have(const std::vector<int>& ranks) {
    return fmt::format("{} {} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "),
                       ranks.size() == 1 ? "has" : "have");
}

}  // namespace

/// Ranks that have been seen waiting since this object was created.
class RankProgress::Pulses {
public:
    Pulses(const RankProgress& board, Store& job) : rank_progress_(board), job_(job), first_(board.job_ranks_.size()) {}
    bool waits(int rank) {
        auto& first = first_[static_cast<std::size_t>(rank)];
        const std::string now = job_.try_get(rank_progress_.waits_key(rank)).value_or("");
        if (!first) first = now;
        return rank == rank_progress_.rank_ || now == gave_up || now != *first;
    }

private:
    const RankProgress& rank_progress_;
    Store& job_;
    std::vector<std::optional<std::string>> first_;
};

RankProgress::RankProgress(Store& job, std::string prefix, int rank, std::vector<int> job_ranks,
                           std::function<void(const std::string& reason)> abort)
    : rank_(rank),
      job_ranks_(std::move(job_ranks)),
      abort_(std::move(abort)),
      job_(job.clone(store_timeout, time_to_reach_store)),
      store_(std::make_unique<PrefixStore>(std::move(prefix), job_)),
      watcher_([this] { watch(); }) {}

RankProgress::~RankProgress() {
    {
        const std::scoped_lock lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    watcher_.join();
}

void RankProgress::begin(std::string_view operation, std::uint64_t number) {
    const std::scoped_lock lock(mutex_);
    operation_ = operation;
    number_ = number;
    began_ = RunClock::now();
    under_way_ = true;
    blamed_ = false;
}

void RankProgress::end() {
    const std::scoped_lock lock(mutex_);
    under_way_ = false;
}

void RankProgress::begin_waiting() {
    const std::scoped_lock lock(mutex_);
    if (waiting_++ == 0) waits_since_ = RunClock::now();
}

void RankProgress::end_waiting() {
    const std::scoped_lock lock(mutex_);
    --waiting_;
}

void RankProgress::end_with_all() {
    const std::scoped_lock lock(mutex_);
    under_way_ = false;
    met_number_ = number_;
    met_operation_ = operation_;
}

void RankProgress::publish(std::string_view key, const std::string& text) {
    try {
        store_->set(fmt::format("{}/{}", key, rank_), text);
    } catch (const std::exception&) {  // the store ended with its rank: no rank can read this
        return;
    }
}

void RankProgress::watch() {
    std::unique_lock lock(mutex_);
    auto told = RunClock::now(), looked = told;
    std::optional<RunClock::time_point> heard;  // when the departure of a rank was first seen
    while (!stopping_) {
        changed_.wait_for(lock, publication_threshold);
        const auto now = RunClock::now();
        const bool held_up = under_way_ && now - began_ >= publication_threshold;
        const bool waits = held_up || (waiting_ > 0 && now - waits_since_ >= publication_threshold);
        if (!stopping_ && number_ != published_ && (held_up || now - told >= interval)) {
            published_ = number_;
            told = now;
            const std::string text = fmt::format("{} {}", number_, operation_);
            lock.unlock();
            publish(progress, text);
            lock.lock();
        }
        if (stopping_ || !waits || now - looked < interval) continue;
        looked = now;
        const auto began = began_;
        lock.unlock();
        publish_waiting();
        const std::string reason = held_up ? lost_in_operation() : std::string();
        if (!reason.empty() && !heard) heard = now;
        if (!reason.empty() && now - std::max(*heard, began) >= time_to_finish) return abort_(reason);
        lock.lock();
    }
}

std::string RankProgress::lost() {
    const std::string lines = job_->try_get(rank_exits).value_or("");
    for (std::size_t rank = 0; rank < job_ranks_.size(); ++rank)
        if (const auto how = rank_exit_of(lines, job_ranks_[rank]); how && *how != RankExit::left)
            return fmt::format("rank {} has {}", rank, name_of(*how));
    return {};
}

std::string RankProgress::lost_in_operation() noexcept {
    try {
        return lost();
    } catch (const std::exception&) {  // the store is unreachable: its rank may have left in good order
        return {};
    }
}

std::string RankProgress::lost_in_setup() noexcept {
    try {
        return lost();
    } catch (const StoreEnded& error) {
        return error.what();
    } catch (const std::exception&) {  // the store does not answer
        return {};
    }
}

std::string RankProgress::waits_key(int rank) const {
    return fmt::format("waits/{}", job_ranks_[static_cast<std::size_t>(rank)]);
}

void RankProgress::publish_waiting() {
    try {
        job_->set(waits_key(rank_), std::to_string(++pulses));
    } catch (const std::exception&) {  // the store ended with its rank: no rank can read this
        return;
    }
}

RankProgress::Seen RankProgress::seen(std::string_view key, int rank) {
    Seen there;
    if (const std::optional<std::string> text = store_->try_get(fmt::format("{}/{}", key, rank)))
        std::istringstream(*text) >> there.number >> there.operation;
    return there;
}

std::vector<int> RankProgress::not_waiting(std::vector<int> ranks) noexcept {
    try {
        Pulses pulse(*this, *job_);
        for (const auto until = RunClock::now() + time_of_pulses; !ranks.empty() && RunClock::now() < until;) {
            std::erase_if(ranks, [&](int rank) { return pulse.waits(rank); });
            if (!ranks.empty()) pause_for(milliseconds(50));
        }
    } catch (const std::exception&) {  // the store does not answer
        return ranks;
    }
    return ranks;
}

std::string RankProgress::verdict() noexcept {
    try {
        Seen own, met;
        {
            const std::scoped_lock lock(mutex_);
            if (!under_way_) return {};
            own = {number_, operation_};
            met = {met_number_, met_operation_};
        }
        publish(progress, fmt::format("{} {}", own.number, own.operation));
        Pulses pulse(*this, *job_);
        std::vector<bool> waits(job_ranks_.size());
        Behind late;
        std::vector<int> stalled;
        for (const auto until = RunClock::now() + time_of_pulses;;) {
            late = {};
            stalled.clear();
            for (int rank = 0; rank < static_cast<int>(job_ranks_.size()); ++rank) {
                waits[static_cast<std::size_t>(rank)] = waits[static_cast<std::size_t>(rank)] || pulse.waits(rank);
                if (waits[static_cast<std::size_t>(rank)]) continue;
                Seen there = seen(progress, rank);
                if (there.number == own.number) stalled.push_back(rank);
                if (there.number >= own.number) continue;
                late.ranks.push_back(rank);
                if (there.number < met.number) there = met;
                if (there.number > 0 && late.last.empty())
                    late.last =
                        fmt::format(" (rank {} was last seen in {} number {})", rank, there.operation, there.number);
            }
            if ((late.ranks.empty() && stalled.empty()) || RunClock::now() >= until) break;
            pause_for(milliseconds(50));
        }
        if (late.ranks.empty() && stalled.empty()) return {};
        {
            const std::scoped_lock lock(mutex_);
            blamed_ = true;
        }
        if (!late.ranks.empty()) return ranks_have(late.ranks) + " not arrived" + late.last;
        return ranks_have(stalled) +
               (stalled.size() == 1 ? " arrived but does not continue" : " arrived but do not continue");
    } catch (const std::exception&) {  // the store does not answer
        return {};
    }
}

RankProgress::Behind RankProgress::behind(std::string_view key, std::uint64_t number, const Seen& met) {
    const auto until = RunClock::now() + time_to_tell;
    Pulses pulse(*this, *job_);
    Behind found;
    do {
        pause_for(milliseconds(20));
        found = {};
        for (int rank = 0; rank < static_cast<int>(job_ranks_.size()); ++rank) {
            Seen there = seen(key, rank);
            if (there.number >= number || pulse.waits(rank)) continue;
            found.ranks.push_back(rank);
            if (there.number < met.number) there = met;
            if (there.number > 0 && found.last.empty())
                found.last =
                    fmt::format(" (rank {} was last seen in {} number {})", rank, there.operation, there.number);
        }
    } while (!found.ranks.empty() && RunClock::now() < until);
    return found;
}

std::string RankProgress::missing(std::string_view operation, std::uint64_t number) noexcept {
    try {
        publish(progress, fmt::format("{} {}", number, operation));
        Seen met;
        bool blamed = false;
        {
            const std::scoped_lock lock(mutex_);
            met = {met_number_, met_operation_};
            blamed = blamed_;
        }
        const Behind found = blamed ? Behind() : behind(progress, number, met);
        std::string text = found.ranks.empty() ? "" : ranks_have(found.ranks) + " not arrived yet" + found.last;
        if (const std::string first = cause(); !first.empty()) text += (text.empty() ? "" : "; ") + first;
        return text;
    } catch (const std::exception& error) {
        return error.what();  // the missing rank may be the one that holds the store
    }
}

void RankProgress::note_cause(const std::string& reason) noexcept {
    try {
        store_->compare_set("cause", "", fmt::format("{} {}", rank_, reason));
    } catch (const std::exception&) {
        return;
    }
}

void RankProgress::note_failure(const std::string& reason) noexcept {
    try {
        job_->set(waits_key(rank_), gave_up);
    } catch (const std::exception&) {  // the cause may still reach the store
    }
    note_cause(reason);
}

std::string RankProgress::cause() {
    const std::string text = store_->try_get("cause").value_or("");
    const std::size_t space = text.find(' ');
    if (text.empty() || text.substr(0, space) == std::to_string(rank_)) return {};
    return fmt::format("rank {} gave up first: {}", text.substr(0, space), text.substr(space + 1));
}

std::string RankProgress::unconnected() noexcept {
    try {
        note_connected();  // this rank is not connected, but the others must not wait for it
        const Behind found = behind(connected, 1, {});
        return found.ranks.empty() ? "" : ranks_have(found.ranks) + " not connected so far";
    } catch (const std::exception&) {  // without the store there is no group, which was already reported
        return {};
    }
}

}  // namespace lockstep
