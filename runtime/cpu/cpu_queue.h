// The queue of a stream of a virtual CPU device, and the threads that serve it.
//
// Every queue with work has its own thread, which is created with the first item and stays for a while (see
// StreamThreads). Ready work is therefore executed even if work in other queues blocks. However, waking a thread takes
// as long as a small kernel, and more busy threads than cores interrupt those that compute. So a compute stream's
// thread that waits for an event stays awake for about as long as a wake-up takes, unless another thread needs the
// core. Meanwhile it serves queues of the other kind (sums, updates, copies between devices), whose own threads need
// not be woken.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>

#include "lockstep/runtime/cpu/cpu_event.h"
#include "lockstep/runtime/stream.h"

namespace lockstep {

/// Items are executed in order, by one thread at a time.
class CpuQueue : public std::enable_shared_from_this<CpuQueue> {
public:
    /// Role of the queue's thread among the helpers.
    enum class Part : std::uint8_t {
        helper,  ///< its thread helps others while it waits
        helped,  ///< may be served by helpers: holds no work that blocks
        alone
    };

    static std::shared_ptr<CpuQueue> make(Device device, Part part);

    // These throw DeviceError, with nothing enqueued, if the queue needs a thread and the system cannot create one.

    /// Work for `threads` CPU threads; skipped if earlier work failed and `synchronize` has not yet reported it.
    void run(Work work, int threads);
    void record(std::shared_ptr<CpuEventState> event);
    void wait(std::shared_ptr<CpuEventState> event, std::uint64_t ticket);

    /// Blocks until the queue is empty; rethrows the first failure since the last call.
    void synchronize();
    bool idle() const;
    /// Lets the thread end after the present items, unless more are enqueued before.
    void let_thread_end();
    /// Waits until the thread has ended or the queue has received more work.
    void await_end_of_thread();

    /// After workers were stopped: waits until no other thread executes an item of this queue.
    void await_stop();

    /// Called when the front item may be ready: makes a thread look at it.
    void announce();
    /// Wakes the queue's own thread.
    void wake();

private:
    struct Item {
        Work work;  ///< empty: an event to record or to wait for
        int threads = 0;
        std::shared_ptr<CpuEventState> event;
        std::uint64_t ticket = 0;
        bool waits = false;
    };

    CpuQueue(Device device, Part part) : device_(device), part_(part) {}
    /// With the lock: makes sure that the queue has a thread.
    void need_thread();
    /// With the lock, after need_thread().
    void push(std::unique_lock<std::mutex>& lock, Item item);
    bool ready() const;
    /// Loop of the queue's own thread.
    void serve();
    /// Waits for something to do; false if the thread may end.
    bool await_work(std::unique_lock<std::mutex>& lock);
    /// Serves other queues until `until` is reached; false if there was no work for a while.
    static bool help_others(const CpuEventState& until, std::uint64_t ticket);
    /// Executes ready items until `until` is reached, unless another thread serves this queue.
    void help(const CpuEventState* until, std::uint64_t ticket);
    /// With the queue claimed: executes ready items, at most until `until` is reached.
    void do_ready(std::unique_lock<std::mutex>& lock, const CpuEventState* until, std::uint64_t ticket);
    void perform(Item& item);
    /// Releases the claim and makes sure that the remaining items are served.
    void leave(std::unique_lock<std::mutex>& lock);

    const Device device_;
    const Part part_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;  ///< its thread waits here
    std::condition_variable rested_;   ///< hosts wait here for an empty queue or the end of its thread
    std::deque<Item> items_;
    bool claimed_ = false;  ///< a thread serves the queue
    bool busy_ = false;     ///< an item is being executed
    bool has_thread_ = false;
    bool may_end_ = false;  ///< the thread may end once the queue is empty
    std::exception_ptr failure_;
};

/// Time after which a waiting host wakes the threads of queues that were offered to helpers and not served: blocking
/// work may hold up a helper.
constexpr std::chrono::milliseconds forgotten(20);
void wake_offered_queues();

/// Current number of CPU stream threads that serve a queue.
int cpu_worker_count();

/// Current number of CPU stream threads, including those that have left their queue and are still exiting.
int existing_cpu_threads();

/// For a child of fork(), while it has one thread: those of its parent do not exist here.
void forget_cpu_threads();

/// If the caller is a CPU stream thread whose work has called exit(): the other threads finish their current item and
/// start no more. Otherwise returns false without effect.
bool stop_cpu_workers_from_one();

}  // namespace lockstep
