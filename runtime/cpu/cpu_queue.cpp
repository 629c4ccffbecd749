#include "lockstep/runtime/cpu/cpu_queue.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <csignal>
#include <random>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/runtime/cpu/cpu_helpers.h"
#include "lockstep/runtime/cpu/thread_count.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/cpu_topology.h"
#include "lockstep/runtime/internal/process.h"
#include "lockstep/runtime/internal/threads.h"

namespace lockstep {

namespace {

std::atomic<int> workers{0};
std::atomic<int> keepers{0};  // number of live StreamThreads instances

std::atomic<bool> stopped{false};  // workers start no more items

/// Threads that have left their queue and may still be destroying their thread-local objects: launch() forks, and a
/// thread that exits during the fork may hold a lock that the child needs.
class ExitingThreads {
public:
    static ExitingThreads& instance() { return **current(); }
    /// For a child of fork(), where the threads of its parent do not exist.
    static void forget() { *current() = new ExitingThreads; }

    /// Adds the calling thread.
    void add() {
        const std::scoped_lock lock(mutex_);
        drop_exited();
        threads_.push_back(::gettid());
    }
    /// Number of them, without the calling thread.
    int count() {
        const std::scoped_lock lock(mutex_);
        drop_exited();
        return static_cast<int>(threads_.size()) -
               static_cast<int>(std::count(threads_.begin(), threads_.end(), ::gettid()));
    }
    /// Waits for all of them, but not for long: the system may have given the number of one to another thread.
    void await() {
        for (int looks = 0; looks < 20000 && count() > 0; ++looks)
            std::this_thread::sleep_for(std::chrono::microseconds(50));
    }

private:
    static ExitingThreads** current() {
        static auto* instance = new ExitingThreads;
        return &instance;
    }
    void drop_exited() {
        std::erase_if(threads_, [](pid_t thread) { return ::tgkill(::getpid(), thread, 0) != 0; });
    }

    std::mutex mutex_;
    std::vector<pid_t> threads_;
};

/// A queue whose item this thread executes; the item may in turn execute one of another queue.
struct Serving {
    const CpuQueue* queue;
    const Serving* outer;
};
thread_local const Serving* serving = nullptr;  // needs no memory: items are executed until the very end

/// Libraries create static objects at the first calls of a kind, which are among a thread's first items.
void watch_early_items() {
    constexpr unsigned early = 512;
    constexpr int most = 1000;  // over all threads, including those that have exited
    static std::atomic<int> watched{0};
    thread_local unsigned items = 0;
    if (items >= early) return;
    if (std::has_single_bit(++items) && watched.fetch_add(1, std::memory_order_relaxed) < most) process_exit::watch();
}

/// Idle time after which a thread exits, unless a StreamThreads instance exists.
constexpr std::chrono::seconds idle_limit(1);

/// Longest delay in microseconds that a worker sleeps before an item at random (LOCKSTEP_INJECT_DELAYS): shakes out
/// missing waits in tests.
int injected_delay_us() {
    static const auto value = static_cast<int>(environment::integer("LOCKSTEP_INJECT_DELAYS", 0, 1000000).value_or(0));
    return value;
}

void delay() {
    const int longest = injected_delay_us();
    if (longest == 0) return;
    thread_local std::minstd_rand delays(std::random_device{}());
    std::this_thread::sleep_for(std::chrono::microseconds(delays() % static_cast<unsigned>(longest)));
}

}  // namespace

int cpu_worker_count() { return workers; }

int existing_cpu_threads() { return cpu_worker_count() + ExitingThreads::instance().count(); }

void forget_cpu_threads() { ExitingThreads::forget(); }

void wake_offered_queues() { Helpers::instance().give_back(); }

namespace {

/// Cores that an item occupies.
class UsedCores {
public:
    explicit UsedCores(int cores) : cores_(cores) { Helpers::instance().use_cores(cores_); }
    ~UsedCores() { Helpers::instance().use_cores(-cores_); }
    UsedCores(const UsedCores&) = delete;
    UsedCores& operator=(const UsedCores&) = delete;

private:
    int cores_;
};

/// All existing queues.
struct Queues {
    std::mutex mutex;
    std::vector<std::weak_ptr<CpuQueue>> all;
};
Queues& queues() {
    static auto* instance = new Queues;
    return *instance;
}

std::vector<std::shared_ptr<CpuQueue>> all_queues() {
    const std::scoped_lock lock(queues().mutex);
    std::vector<std::shared_ptr<CpuQueue>> found;
    for (const auto& known : queues().all)
        if (auto queue = known.lock()) found.push_back(std::move(queue));
    return found;
}

}  // namespace

std::shared_ptr<CpuQueue> CpuQueue::make(Device device, Part part) {
    // Malformed settings are thrown here, not on the worker.
    injected_delay_us();
    usable_cores();
    std::shared_ptr<CpuQueue> queue(new CpuQueue(device, part));
    const std::scoped_lock lock(queues().mutex);
    std::erase_if(queues().all, [](const auto& known) { return known.expired(); });
    queues().all.push_back(queue);
    return queue;
}

void CpuQueue::need_thread() {
    may_end_ = false;
    if (has_thread_) return;
    ++workers;
    try {
        std::thread([self = shared_from_this()] { self->serve(); }).detach();
    } catch (const std::system_error& error) {
        --workers;
        throw DeviceError(
            fmt::format("{}: cannot start a thread ({}); expected a higher process limit (ulimit -u, pids.max of the "
                        "cgroup) or fewer devices",
                        device_.str(), error.code().message()));
    }
    has_thread_ = true;
}

void CpuQueue::run(Work work, int threads) {
    std::unique_lock lock(mutex_);
    need_thread();
    Item item;
    item.work = std::move(work);
    item.threads = threads;
    push(lock, std::move(item));
}

void CpuQueue::record(std::shared_ptr<CpuEventState> event) {
    std::unique_lock lock(mutex_);
    need_thread();
    // Issued under the lock: every visible ticket is in the queue. Otherwise, if two hosts make two streams wait for
    // each other, a wait could be queued before the record that it depends on.
    const std::uint64_t ticket = event->issue();
    push(lock, {{}, 0, std::move(event), ticket, false});
}

void CpuQueue::wait(std::shared_ptr<CpuEventState> event, std::uint64_t ticket) {
    std::unique_lock lock(mutex_);
    need_thread();
    push(lock, {{}, 0, std::move(event), ticket, true});
}

void CpuQueue::push(std::unique_lock<std::mutex>& lock, Item item) {
    items_.push_back(std::move(item));
    if (!claimed_ && items_.size() == 1) leave(lock);
}

bool CpuQueue::ready() const {
    return !items_.empty() && !(items_.front().waits && !items_.front().event->reached(items_.front().ticket));
}

void CpuQueue::serve() {
    Helpers& helpers = Helpers::instance();
    std::unique_lock lock(mutex_);
    while (await_work(lock)) {
        claimed_ = true;
        if (part_ == Part::helper) helpers.wake_up();
        const UsedCores own(1);
        do_ready(lock, nullptr, 0);
        while (part_ == Part::helper && !items_.empty()) {
            const std::shared_ptr<CpuEventState> event = items_.front().event;
            const std::uint64_t ticket = items_.front().ticket;
            lock.unlock();
            const bool reached = help_others(*event, ticket);
            lock.lock();
            if (!reached) break;
            do_ready(lock, nullptr, 0);
        }
        if (part_ == Part::helper) {
            lock.unlock();
            helpers.go_to_sleep();
            lock.lock();
        }
        leave(lock);
    }
    has_thread_ = false;
    ExitingThreads::instance().add();
    --workers;
    rested_.notify_all();
}

bool CpuQueue::await_work(std::unique_lock<std::mutex>& lock) {
    const auto something = [this] { return !claimed_ && (ready() || (items_.empty() && may_end_)); };
    for (;;) {
        if (keepers > 0)
            changed_.wait(lock, something);
        else if (!changed_.wait_for(lock, idle_limit, something) && (keepers > 0 || claimed_ || !items_.empty()))
            continue;
        return !items_.empty();
    }
}

bool CpuQueue::help_others(const CpuEventState& until, std::uint64_t ticket) {
    Helpers& helpers = Helpers::instance();
    helpers.waiting(1);
    const auto something = [&] { return until.reached(ticket) || helpers.any_offered(); };
    Spin spin;
    while (!until.reached(ticket)) {
        if (const std::shared_ptr<CpuQueue> queue = helpers.take(true)) {
            helpers.waiting(-1);
            queue->help(&until, ticket);
            helpers.waiting(1);
            spin = Spin();
        } else if (helpers.core_is_wanted() || !spin.again(something)) {
            break;
        }
    }
    helpers.waiting(-1);
    return until.reached(ticket);
}

void CpuQueue::help(const CpuEventState* until, std::uint64_t ticket) {
    std::unique_lock lock(mutex_);
    if (claimed_ || !ready()) return;
    claimed_ = true;
    do_ready(lock, until, ticket);
    leave(lock);
}

void CpuQueue::do_ready(std::unique_lock<std::mutex>& lock, const CpuEventState* until, std::uint64_t ticket) {
    while (ready() && !(until && until->reached(ticket))) {
        if (stopped) {  // for good: the process is ending
            changed_.wait(lock, [] { return false; });
        }
        Item item = std::move(items_.front());
        items_.pop_front();
        busy_ = true;
        const Serving here{this, serving};
        serving = &here;
        const bool skip = item.work && failure_;
        std::exception_ptr failure;
        lock.unlock();
        if (part_ == Part::helper && item.work)
            while (const std::shared_ptr<CpuQueue> queue = Helpers::instance().take(false)) queue->help(nullptr, 0);
        try {
            if (!skip) perform(item);
        } catch (...) {
            failure = std::current_exception();
        }
        item = {};  // destroying its contents may take long
        lock.lock();
        if (failure && !failure_) failure_ = failure;
        busy_ = false;
        serving = here.outer;
        if (items_.empty() || stopped) rested_.notify_all();
    }
}

void CpuQueue::perform(Item& item) {
    if (item.waits) return;
    delay();
    if (item.event) {
        item.event->reach(item.ticket);
        return;
    }
    const ThreadCount scope(item.threads);
    const UsedCores more(item.threads - 1);
    item.work(ExecContext{device_, nullptr});
    watch_early_items();
}

void CpuQueue::leave(std::unique_lock<std::mutex>& lock) {
    claimed_ = false;
    if (items_.empty()) {
        if (may_end_) changed_.notify_all();
        return;
    }
    const Item& front = items_.front();
    if (front.waits && front.event->announce_to(shared_from_this(), front.ticket)) return;
    const std::shared_ptr<CpuQueue> self = shared_from_this();
    lock.unlock();
    announce();
    lock.lock();
}

void CpuQueue::announce() {
    if (part_ != Part::helped || !Helpers::instance().offer(shared_from_this())) wake();
}

void CpuQueue::wake() {
    { const std::scoped_lock lock(mutex_); }  // its thread has seen the ready item, or waits
    changed_.notify_all();
}

void CpuQueue::synchronize() {
    std::unique_lock lock(mutex_);
    while (!rested_.wait_for(lock, forgotten, [&] { return items_.empty() && !busy_; })) {
        lock.unlock();
        wake_offered_queues();
        lock.lock();
    }
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void CpuQueue::await_stop() {
    std::unique_lock lock(mutex_);
    for (const Serving* own = serving; own; own = own->outer)
        if (own->queue == this) return;
    rested_.wait(lock, [&] { return !busy_; });
}

bool stop_cpu_workers_from_one() {
    if (!serving) return false;
    stopped = true;
    for (const auto& queue : all_queues()) queue->await_stop();
    return true;
}

bool CpuQueue::idle() const {
    const std::scoped_lock lock(mutex_);
    return items_.empty() && !busy_;
}

void CpuQueue::let_thread_end() {
    const std::scoped_lock lock(mutex_);
    may_end_ = true;
    changed_.notify_all();
}

void CpuQueue::await_end_of_thread() {
    std::unique_lock lock(mutex_);
    while (!rested_.wait_for(lock, forgotten, [this] { return !has_thread_ || !may_end_; })) {
        lock.unlock();
        wake_offered_queues();
        lock.lock();
    }
}

StreamThreads::StreamThreads() : fork_generation_(forked::generation()) { ++keepers; }

StreamThreads::~StreamThreads() {
    if (--keepers > 0 || fork_generation_ != forked::generation()) return;
    const std::vector<std::shared_ptr<CpuQueue>> all = all_queues();
    for (const auto& queue : all) queue->let_thread_end();
    for (const auto& queue : all) queue->await_end_of_thread();
    ExitingThreads::instance().await();
}

}  // namespace lockstep
