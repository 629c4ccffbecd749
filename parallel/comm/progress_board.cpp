#include "lockstep/parallel/comm/progress_board.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <sstream>

namespace lockstep {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// An operation that takes longer is told of.
constexpr milliseconds patience(100);
/// Whoever goes on tells of it so often.
constexpr milliseconds interval(400);
/// The store may lie with the rank that has stopped: nobody waits longer for its answer.
constexpr milliseconds time_to_answer(250);
/// What others have done may not have been told yet.
constexpr milliseconds time_to_tell(500);

std::string ranks_have(const std::vector<int>& ranks) {
    return fmt::format("{} {} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "),
                       ranks.size() == 1 ? "has" : "have");
}

}  // namespace

ProgressBoard::ProgressBoard(Store& store, int rank, int size)
    : rank_(rank), size_(size), store_(store.clone(time_to_answer)), watcher_([this] { watch(); }) {}

ProgressBoard::~ProgressBoard() {
    {
        const std::scoped_lock lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    watcher_.join();
}

void ProgressBoard::begin(std::string_view operation, std::uint64_t number) {
    const std::scoped_lock lock(mutex_);
    operation_ = operation;
    number_ = number;
    began_ = Clock::now();
    under_way_ = true;
}

void ProgressBoard::end() {
    const std::scoped_lock lock(mutex_);
    under_way_ = false;
}

void ProgressBoard::publish(std::string_view key, const std::string& text) {
    try {
        store_->set(fmt::format("{}/{}", key, rank_), text);
    } catch (const std::exception&) {  // the store has gone with its rank: then nobody reads this
        return;
    }
}

void ProgressBoard::watch() {
    std::unique_lock lock(mutex_);
    auto told = Clock::now();
    while (!stopping_) {
        changed_.wait_for(lock, patience);
        const auto now = Clock::now();
        const bool held_up = under_way_ && now - began_ >= patience;
        if (stopping_ || number_ == published_ || !(held_up || now - told >= interval)) continue;
        published_ = number_;
        told = now;
        const std::string text = fmt::format("{} {}", number_, operation_);
        lock.unlock();
        publish(progress, text);
        lock.lock();
    }
}

ProgressBoard::Behind ProgressBoard::behind(std::string_view key, std::uint64_t number) {
    const auto until = Clock::now() + time_to_tell;
    Behind found;
    do {
        std::this_thread::sleep_for(milliseconds(20));
        found = {};
        for (int rank = 0; rank < size_; ++rank) {
            const std::optional<std::string> text = store_->try_get(fmt::format("{}/{}", key, rank));
            std::uint64_t there = 0;
            std::string name;
            if (text) std::istringstream(*text) >> there >> name;
            if (there >= number) continue;
            found.ranks.push_back(rank);
            if (there > 0 && found.last.empty())
                found.last = fmt::format(" (rank {} was last seen in {} number {})", rank, name, there);
        }
    } while (!found.ranks.empty() && Clock::now() < until);
    return found;
}

std::string ProgressBoard::missing(std::string_view operation, std::uint64_t number) noexcept {
    try {
        publish(progress, fmt::format("{} {}", number, operation));
        const Behind found = behind(progress, number);
        std::string text = found.ranks.empty() ? "" : ranks_have(found.ranks) + " not come so far" + found.last;
        if (const std::string first = cause(); !first.empty()) text += (text.empty() ? "" : "; ") + first;
        return text;
    } catch (const std::exception& error) {
        return error.what();  // the rank that holds the store may be the one that is missing
    }
}

void ProgressBoard::note_cause(const std::string& reason) noexcept {
    try {
        store_->compare_set("cause", "", fmt::format("{} {}", rank_, reason));
    } catch (const std::exception&) {
        return;
    }
}

std::string ProgressBoard::cause() {
    const std::string text = store_->try_get("cause").value_or("");
    const std::size_t space = text.find(' ');
    if (text.empty() || text.substr(0, space) == std::to_string(rank_)) return {};
    return fmt::format("rank {} gave up first: {}", text.substr(0, space), text.substr(space + 1));
}

std::string ProgressBoard::unconnected() noexcept {
    try {
        note_connected();  // it is not, but it is no reason for the others to wait
        const Behind found = behind(connected, 1);
        return found.ranks.empty() ? "" : ranks_have(found.ranks) + " not connected so far";
    } catch (const std::exception& error) {
        return error.what();
    }
}

}  // namespace lockstep
