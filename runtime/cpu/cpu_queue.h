// The queue of a stream of a virtual CPU device, and the threads that serve it.
//
// Every queue with work has a thread of its own, which comes with the first item and stays a while (see StreamThreads).
// So whatever is ready gets done even where work in other queues blocks. Waking a thread takes as long as a small
// kernel, though, and one more busy thread than there are cores interrupts those that compute. So the thread of a
// computing stream that has to wait for an event stays awake as long as a wake-up takes, where that keeps nobody from a
// core, and meanwhile serves queues of the other kind (sums, updates, copies between devices), whose own threads then
// need not be woken.
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

/// Items are done in their order, by one thread at a time.
class CpuQueue : public std::enable_shared_from_this<CpuQueue> {
public:
    /// What else its thread does, or who else may serve it.
    enum class Part : std::uint8_t {
        helper,  ///< its thread helps others while it waits
        helped,  ///< may be served by helpers: holds no work that blocks
        alone
    };

    static std::shared_ptr<CpuQueue> make(Device device, Part part);

    // These throw DeviceError, with nothing enqueued, where there is no thread and the system gives none.

    /// Work for `threads` CPU threads; skipped when work before it failed and `synchronize` has not yet said so.
    void run(Work work, int threads);
    void record(std::shared_ptr<CpuEventState> event);
    void wait(std::shared_ptr<CpuEventState> event, std::uint64_t ticket);

    /// Blocks until the queue is empty; rethrows the first failure since the last call.
    void synchronize();
    bool idle() const;
    /// Its thread ends once what is there is done, unless more comes before.
    void let_thread_end();
    /// Waits until it has, or the queue has got more work after all.
    void await_end_of_thread();

    /// With workers stopped: waits until no other thread does an item of it.
    void await_stop();

    /// The item in front may be ready now: sees that somebody looks.
    void announce();
    /// Its own thread looks.
    void wake();

private:
    struct Item {
        Work work;  ///< empty: recorded or waited for
        int threads = 0;
        std::shared_ptr<CpuEventState> event;
        std::uint64_t ticket = 0;
        bool waits = false;
    };

    CpuQueue(Device device, Part part) : device_(device), part_(part) {}
    /// With the lock: sees that there is a thread.
    void need_thread();
    /// Likewise; there is one.
    void push(std::unique_lock<std::mutex>& lock, Item item);
    bool ready() const;
    /// The thread of its own.
    void serve();
    /// Waits for something to do; false: the thread may end.
    bool await_work(std::unique_lock<std::mutex>& lock);
    /// Serves others until `until` has been reached; false when nothing was left to do for a while.
    static bool help_others(const CpuEventState& until, std::uint64_t ticket);
    /// Does what is ready, unless somebody else does, until `until` has been reached.
    void help(const CpuEventState* until, std::uint64_t ticket);
    /// With the queue claimed: does what is ready, at most until `until` has been reached.
    void do_ready(std::unique_lock<std::mutex>& lock, const CpuEventState* until, std::uint64_t ticket);
    void perform(Item& item);
    /// Gives the claim up and sees that the rest is not forgotten.
    void leave(std::unique_lock<std::mutex>& lock);

    const Device device_;
    const Part part_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;  ///< its thread waits here
    std::condition_variable rested_;   ///< hosts wait here: for an empty queue, or the end of its thread
    std::deque<Item> items_;
    bool claimed_ = false;  ///< a thread serves it
    bool busy_ = false;     ///< an item is being done
    bool has_thread_ = false;
    bool may_end_ = false;  ///< the thread, once the queue is empty
    std::exception_ptr failure_;
};

/// A host that waits so long wakes the threads of queues which helpers were offered and have not served: one of them
/// may be held up by work that blocks.
constexpr std::chrono::milliseconds forgotten(20);
void wake_offered_queues();

/// Threads that CPU streams have now.
int cpu_worker_count();

/// Where the caller is such a thread, whose work has called exit(): the others end what they are doing and do nothing
/// more. False, and nothing happens, where it is none.
bool stop_cpu_workers_from_one();

}  // namespace lockstep
