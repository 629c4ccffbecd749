// Threads of compute streams that serve other queues while they wait.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/runtime/cpu/cpu_queue.h"
#include "lockstep/runtime/internal/cpu_topology.h"

namespace lockstep {

/// Queues offered to the threads of compute streams, and the number of those threads that are awake.
class Helpers {
public:
    static Helpers& instance() {
        static auto* helpers = new Helpers;  // workers may outlive objects destroyed at exit
        return *helpers;
    }

    /// True if a helper will look at `queue`: a waiting helper or, if no core is free for another thread, one that is
    /// about to finish an item. The caller itself does not count: it has already finished the work that others waited
    /// for.
    bool offer(std::shared_ptr<CpuQueue> queue) {
        const std::scoped_lock lock(mutex_);
        const int others = awake_ - (is_helper_ ? 1 : 0);
        if (waiting_ == 0 && (others == 0 || cores_in_use_ - waiting_ < cores())) return false;
        offers_.push_back({std::move(queue), std::this_thread::get_id()});
        count_ = offers_.size();
        return true;
    }

    /// A queue to serve, or null. A waiting thread takes any offer, other threads only offers of other threads.
    std::shared_ptr<CpuQueue> take(bool waits) {
        if (count_ == 0) return nullptr;
        const std::scoped_lock lock(mutex_);
        const auto found = std::find_if(offers_.begin(), offers_.end(), [&](const Offer& offer) {
            return waits || offer.by != std::this_thread::get_id();
        });
        if (found == offers_.end()) return nullptr;
        std::shared_ptr<CpuQueue> queue = std::move(found->queue);
        offers_.erase(found);
        count_ = offers_.size();
        return queue;
    }

    void wake_up() {
        is_helper_ = true;
        const std::scoped_lock lock(mutex_);
        ++awake_;
    }
    /// Hands remaining offers back: the other helpers may be in the middle of long work.
    void go_to_sleep() {
        is_helper_ = false;
        {
            const std::scoped_lock lock(mutex_);
            --awake_;
        }
        if (count_ > 0) give_back();
    }
    /// The caller starts (1) or stops (-1) waiting.
    void waiting(int change) {
        const std::scoped_lock lock(mutex_);
        waiting_ += change;
    }

    /// Withdraws all offers and wakes the queues' own threads.
    void give_back() {
        std::vector<Offer> left;
        {
            const std::scoped_lock lock(mutex_);
            left.swap(offers_);
            count_ = 0;
        }
        for (const Offer& offer : left) offer.queue->wake();
    }

    bool any_offered() const { return count_ > 0; }

    void use_cores(int change) { cores_in_use_ += change; }
    /// True if a thread with work needs the core on which the caller spins.
    bool core_is_wanted() const { return cores_in_use_ > cores(); }

private:
    static int cores() {
        static const int count = usable_cores();
        return count;
    }

    struct Offer {
        std::shared_ptr<CpuQueue> queue;
        std::thread::id by;
    };

    std::mutex mutex_;
    int awake_ = 0;    ///< helpers that are not asleep
    int waiting_ = 0;  ///< helpers without work
    std::vector<Offer> offers_;
    std::atomic<std::size_t> count_{0};
    std::atomic<int> cores_in_use_{0};
    static inline thread_local bool is_helper_ = false;
};

}  // namespace lockstep
