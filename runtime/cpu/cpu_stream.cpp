#include "lockstep/runtime/cpu/cpu_stream.h"

#include <fmt/format.h>
#include <omp.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <utility>

#include "lockstep/runtime/cpu/cpu_event.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/environment.h"

namespace lockstep {

namespace {

std::atomic<int> workers{0};

/// Longest delay in microseconds that a worker sleeps before an item at random (LOCKSTEP_INJECT_DELAYS): shakes out
/// missing waits in tests.
int injected_delay_us() {
    static const auto value = static_cast<int>(environment::integer("LOCKSTEP_INJECT_DELAYS", 0, 1000000).value_or(0));
    return value;
}

/// The calling thread's OpenMP thread count while a piece of work runs.
class ThreadCount {
public:
    explicit ThreadCount(int threads) : previous_(omp_get_max_threads()) {
        if (threads != previous_) omp_set_num_threads(threads);
    }
    ~ThreadCount() {
        if (omp_get_max_threads() != previous_) omp_set_num_threads(previous_);
    }
    ThreadCount(const ThreadCount&) = delete;
    ThreadCount& operator=(const ThreadCount&) = delete;

private:
    int previous_;
};

}  // namespace

int cpu_worker_count() { return workers; }

void InlineStream::run(Work work, int threads) {
    const ThreadCount scope(threads);
    work(Launch{device_, nullptr});
}

void InlineStream::copy(void* to, Device, const void* from, Device, std::size_t bytes) {
    run([=](const Launch&) { std::memcpy(to, from, bytes); }, 1);
}

void InlineStream::copy_2d(void* to, std::size_t to_pitch, Device, const void* from, std::size_t from_pitch, Device,
                           std::size_t row_bytes, std::size_t rows) {
    run(
        [=](const Launch&) {
            for (std::size_t row = 0; row < rows; ++row)
                std::memcpy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch,
                            row_bytes);
        },
        1);
}

void InlineStream::fill(void* to, std::uint8_t value, std::size_t bytes) {
    run([=](const Launch&) { std::memset(to, value, bytes); }, 1);
}

void InlineStream::callback(std::function<void()> function) {
    run([f = std::move(function)](const Launch&) { f(); }, 1);
}

void InlineStream::record(EventImpl& event) {
    auto& state = *static_cast<CpuEvent&>(event).state();
    state.reach(state.issue());
}

void InlineStream::wait(const EventImpl& event) { event.synchronize(); }

void InlineStream::synchronize() {}

QueueStream::QueueStream(Device device, std::chrono::microseconds patience)
    : InlineStream(device), queue_(std::make_shared<Queue>()), patience_(patience) {
    injected_delay_us();  // a malformed setting is thrown here, not on the worker
    ++workers;
    std::thread([queue = queue_, device] { serve(queue, device); }).detach();
}

QueueStream::~QueueStream() {
    const std::scoped_lock lock(queue_->mutex);
    queue_->closing = true;
    queue_->changed.notify_all();
}

void QueueStream::serve(const std::shared_ptr<Queue>& queue, Device device) {
    std::minstd_rand delays(std::random_device{}());
    const int longest = injected_delay_us();
    std::unique_lock lock(queue->mutex);
    for (;;) {
        queue->changed.wait(lock, [&] { return !queue->items.empty() || queue->closing; });
        if (queue->items.empty()) return;
        Item item = std::move(queue->items.front());
        queue->items.pop_front();
        queue->busy = true;
        const bool skip = item.threads > 0 && queue->failure;
        lock.unlock();
        std::exception_ptr failure;
        if (!skip) {
            if (longest > 0)
                std::this_thread::sleep_for(std::chrono::microseconds(delays() % static_cast<unsigned>(longest)));
            try {
                const ThreadCount scope(item.threads > 0 ? item.threads : omp_get_max_threads());
                item.work(Launch{device, nullptr});
            } catch (...) {
                failure = std::current_exception();
            }
        }
        item.work = nullptr;
        lock.lock();
        if (failure && !queue->failure) queue->failure = failure;
        queue->busy = false;
        if (queue->items.empty()) queue->changed.notify_all();
    }
}

void QueueStream::push(Item item) {
    {
        const std::scoped_lock lock(queue_->mutex);
        queue_->items.push_back(std::move(item));
    }
    queue_->changed.notify_all();
}

void QueueStream::run(Work work, int threads) { push({std::move(work), std::max(threads, 1)}); }

void QueueStream::record(EventImpl& event) {
    auto state = static_cast<CpuEvent&>(event).state();
    const std::uint64_t ticket = state->issue();
    push({[state = std::move(state), ticket](const Launch&) { state->reach(ticket); }, 0});
}

void QueueStream::wait(const EventImpl& event) {
    const auto* cpu_event = dynamic_cast<const CpuEvent*>(&event);
    if (!cpu_event) {
        event.synchronize();
        return;
    }
    auto state = cpu_event->state();
    const std::uint64_t ticket = state->issued();
    if (state->reached(ticket)) return;
    push({[state = std::move(state), ticket, patience = patience_](const Launch&) { state->await(ticket, patience); },
          0});
}

void QueueStream::synchronize() {
    std::unique_lock lock(queue_->mutex);
    queue_->changed.wait(lock, [&] { return queue_->items.empty() && !queue_->busy; });
    if (queue_->failure) std::rethrow_exception(std::exchange(queue_->failure, nullptr));
}

bool QueueStream::idle() const {
    const std::scoped_lock lock(queue_->mutex);
    return queue_->items.empty() && !queue_->busy;
}

}  // namespace lockstep
