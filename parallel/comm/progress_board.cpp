#include "lockstep/parallel/comm/progress_board.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <sstream>
#include <vector>

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
constexpr milliseconds time_to_tell(600);

std::string key_of(int rank) { return fmt::format("progress/{}", rank); }

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

void ProgressBoard::publish(const std::string& text) {
    try {
        store_->set(key_of(rank_), text);
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
        publish(text);
        lock.lock();
    }
}

std::string ProgressBoard::missing(std::string_view operation, std::uint64_t number) noexcept {
    try {
        publish(fmt::format("{} {}", number, operation));
        const auto until = Clock::now() + time_to_tell;
        std::vector<int> behind;
        std::string last;
        do {
            std::this_thread::sleep_for(milliseconds(20));
            behind.clear();
            last.clear();
            for (int rank = 0; rank < size_; ++rank) {
                const std::optional<std::string> text = store_->try_get(key_of(rank));
                std::uint64_t found = 0;
                std::string name;
                if (text) std::istringstream(*text) >> found >> name;
                if (found >= number) continue;
                behind.push_back(rank);
                if (found > 0 && last.empty())
                    last = fmt::format(" (rank {} was last seen in {} number {})", rank, name, found);
            }
        } while (!behind.empty() && Clock::now() < until);
        if (behind.empty()) return {};
        return fmt::format("{} {} not come so far{}", behind.size() == 1 ? "rank" : "ranks",
                           fmt::format("{} {}", fmt::join(behind, ", "), behind.size() == 1 ? "has" : "have"), last);
    } catch (const std::exception&) {
        return {};
    }
}

}  // namespace lockstep
