#include "lockstep/parallel/comm/shm/group.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/threads.h"

namespace lockstep::shm {

namespace {

/// How long a rank sleeps before it checks whether the others are still alive.
constexpr auto nap = std::chrono::milliseconds(10);
/// Number of checks, a nap apart, whether a rank that seems to be missing only arrives or waits late.
constexpr int looks_at_missing = 30;

}  // namespace

std::string Group::called(const std::vector<int>& ranks) const {
    std::vector<int> names;
    for (const int rank : ranks) names.push_back(called(rank));
    return fmt::format("rank{} {}", names.size() == 1 ? "" : "s", fmt::join(names, ", "));
}

Group::Group(const GroupInfo& info)
    : rank_(info.rank), names_(info.names), verdict_(info.verdict), segments_(static_cast<std::size_t>(info.size)) {
    try {
        join(info);
    } catch (const TransportError& error) {
        end(error.what(), End::failed);
        throw;
    } catch (const Error& error) {  // from the store
        end(error.what(), End::failed);
        throw TransportError(error.what());
    }
}

void Group::leave() const noexcept {
    header(rank_).state.left.store(1, std::memory_order_seq_cst);
    for (int peer = 0; peer < size(); ++peer)
        if (peer != rank_) nudge(peer);
}

void Group::begin_call() {
    require_alive();
    auto& calls = progress(rank_)[Counter::calls];
    calls.store(calls.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void Group::advance(Counter counter, std::uint64_t value) const {
    // Sequentially consistent, like the sleeper's accesses: either the sleeper sees the counter or it is seen asleep
    // here.
    progress(rank_)[counter].store(value, std::memory_order_seq_cst);
    for (int peer = 0; peer < size(); ++peer)
        if (header(peer).bell.sleeping_for.load(std::memory_order_seq_cst) == static_cast<std::uint32_t>(rank_) + 1)
            wake(peer);
}

void Group::nudge(int peer) const {
    if (header(peer).bell.sleeping_for.load(std::memory_order_seq_cst) != 0) wake(peer);
}

void Group::wake(int peer) const {
    auto& rings = header(peer).bell.rings;
    rings.fetch_add(1, std::memory_order_seq_cst);
    syscall(SYS_futex, &rings, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

void Group::wait_long(int peer, Counter counter, std::uint64_t value, Deadline deadline,
                      const std::function<void()>& meanwhile) const {
    auto& waiting = header(rank_).waiting;
    const auto& number = progress(peer)[counter];
    const auto there = [&] { return number.load(std::memory_order_acquire) >= value; };
    bool noted = false;
    for (Spin spin(spin_);;) {
        if (there()) {
            if (noted) waiting.peer.store(0, std::memory_order_relaxed);
            return;
        }
        if (meanwhile) meanwhile();
        require_alive();
        if (!noted && spin.again(there)) continue;
        noted = true;
        waiting.value.store(value, std::memory_order_relaxed);
        waiting.counter.store(counter, std::memory_order_relaxed);
        waiting.peer.store(static_cast<std::uint32_t>(peer) + 1, std::memory_order_release);
        const std::string dead = dead_ranks();
        const bool left = has_left(peer), late = RunClock::now() >= deadline;
        const bool failed = has_failed(peer);
        if (there()) continue;
        if (!dead.empty()) fail(dead);
        if (failed) {  // before it had mapped this rank's memory; otherwise the reason would be in that memory
            std::uint32_t nobody = 0;
            header(rank_).state.ended_by.compare_exchange_strong(nobody, static_cast<std::uint32_t>(peer) + 1);
            throw_end();
        }
        if (left) fail(fmt::format("rank {} has left the group", called(peer)));
        if (late) throw_late(peer);
        sleep(peer, counter, value, deadline);
    }
}

void Group::sleep(int peer, Counter counter, std::uint64_t value, Deadline deadline) const {
    const Header& own = header(rank_);
    auto& bell = header(rank_).bell;
    bell.sleeping_for.store(static_cast<std::uint32_t>(peer) + 1, std::memory_order_seq_cst);
    const std::uint32_t rings = bell.rings.load(std::memory_order_seq_cst);
    if (progress(peer)[counter].load(std::memory_order_seq_cst) < value &&
        own.state.ended_by.load(std::memory_order_seq_cst) == 0 && !has_left(peer)) {
        const auto left =
            std::clamp<std::chrono::nanoseconds>(deadline - RunClock::now(), std::chrono::nanoseconds(0), nap);
        const timespec time{.tv_sec = 0, .tv_nsec = static_cast<long>(left.count())};
        syscall(SYS_futex, &bell.rings, FUTEX_WAIT, rings, &time, nullptr, 0);
    }
    bell.sleeping_for.store(0, std::memory_order_relaxed);
}

std::string Group::dead_ranks() const {
    const auto now = RunClock::now();
    if (now - watched_ < nap) return {};
    watched_ = now;
    return deaths();
}

std::string Group::failure() const {
    return header(rank_).state.ended_by.load(std::memory_order_acquire) != 0 ? reason_of_end() : deaths();
}

std::string Group::deaths() const {
    std::vector<pollfd> polled;
    for (const Descriptor& process : processes_) polled.push_back({process.get(), POLLIN, 0});
    if (poll(polled.data(), polled.size(), 0) <= 0) return {};
    std::vector<int> dead;
    for (int peer = 0; peer < size(); ++peer) {
        if (polled[static_cast<std::size_t>(peer)].revents == 0) continue;
        const bool said_so = segment(peer) && (has_left(peer) || has_failed(peer));
        if (!said_so) dead.push_back(peer);
    }
    if (dead.empty()) return {};
    return fmt::format("{} {} died", called(dead), dead.size() == 1 ? "has" : "have");
}

void Group::fail(const std::string& reason) const {
    end(reason, End::failed);
    throw TransportError(reason);
}

void Group::end(const std::string& reason, End kind) const noexcept {
    if (!segment(rank_)) return;
    Header::State& own = header(rank_).state;
    End none = End::none;
    if (!own.end.compare_exchange_strong(none, End::being_written)) return;
    std::memcpy(own.reason.data(), reason.data(), std::min(reason.size(), longest_reason));
    own.end.store(kind, std::memory_order_seq_cst);
    // This rank last: after a call has failed here, no call succeeds elsewhere.
    for (int i = 1; i <= size(); ++i) {
        const int peer = (rank_ + i) % size();
        if (!segment(peer)) continue;  // setup has failed
        std::uint32_t nobody = 0;
        header(peer).state.ended_by.compare_exchange_strong(nobody, static_cast<std::uint32_t>(rank_) + 1);
        wake(peer);
    }
}

std::string Group::reason_of_end() const {
    const int who = static_cast<int>(header(rank_).state.ended_by.load(std::memory_order_acquire)) - 1;
    if (!segment(who)) return fmt::format("rank {} has ended the group", called(who));
    const Header::State& state = header(who).state;
    const std::string reason(state.reason.data());
    if (who == rank_ || state.end.load(std::memory_order_acquire) != End::failed) return reason;
    return fmt::format("rank {}: {}", called(who), reason);
}

int Group::awaited_by(int peer) const {
    const auto& waiting = header(peer).waiting;
    const std::uint32_t next = waiting.peer.load(std::memory_order_acquire);
    if (next == 0) return -1;
    const int other = static_cast<int>(next) - 1;
    const auto& number = progress(other)[waiting.counter.load(std::memory_order_relaxed)];
    return number.load() >= waiting.value.load() ? -1 : other;
}

/// The rank to blame if `peer` does not continue: `peer` may wait for another rank itself.
int Group::held_up_by(int peer) const {
    for (int steps = 0; steps < size(); ++steps) {
        const int other = awaited_by(peer);
        if (other < 0 || other == rank_) break;
        peer = other;
    }
    return peer;
}

/// Ranks that have begun fewer calls than this one and do not wait for others.
std::vector<int> Group::not_arrived() const {
    const std::uint64_t calls = progress(rank_)[Counter::calls].load(std::memory_order_relaxed);
    std::vector<int> missing;
    for (int other = 0; other < size(); ++other)
        if (progress(other)[Counter::calls].load(std::memory_order_relaxed) < calls && awaited_by(other) < 0)
            missing.push_back(other);
    return missing;
}

void Group::throw_late(int peer) const {
    const std::string verdict = verdict_ ? verdict_() : std::string();
    if (!verdict.empty()) fail("the deadline has passed: " + verdict);
    std::vector<int> missing = not_arrived();
    for (int looks = 1; !missing.empty() && looks < looks_at_missing; ++looks) {
        pause_for(nap);
        require_alive();
        const std::vector<int> now = not_arrived();
        std::erase_if(missing, [&](int rank) { return std::find(now.begin(), now.end(), rank) == now.end(); });
    }
    if (missing.empty())
        fail(fmt::format("the deadline has passed: rank {} has arrived but does not continue",
                         called(held_up_by(peer))));
    fail(fmt::format("the deadline has passed: {} {} not arrived", called(missing),
                     missing.size() == 1 ? "has" : "have"));
}

void Group::decide_spin() {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    for (int peer = 0; peer < size(); ++peer) CPU_OR(&cores, &cores, &header(peer).cores);
    // With fewer cores than ranks another rank needs this core.
    spin_ = CPU_COUNT(&cores) >= size() ? worth_spinning : worth_spinning.zero();
}

}  // namespace lockstep::shm
