#include "lockstep/parallel/comm/mpi/mpi_thread.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

namespace lockstep {

namespace {

class Worker {
public:
    /// Lives as long as the process: its thread may wait for ever.
    static Worker& instance() {
        static auto* one = new Worker;
        return *one;
    }
    std::future<void> start(std::function<void()> call) {
        const std::scoped_lock lock(mutex_);
        calls_.emplace_back(std::move(call));
        changed_.notify_one();
        return calls_.back().get_future();
    }

private:
    Worker() {
        std::thread([this] { work(); }).detach();
    }
    void work() {
        for (std::unique_lock lock(mutex_);;) {
            changed_.wait(lock, [&] { return !calls_.empty(); });
            std::packaged_task<void()> call = std::move(calls_.front());
            calls_.pop_front();
            lock.unlock();
            call();
            lock.lock();
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::packaged_task<void()>> calls_;
};

}  // namespace

bool MpiThread::run(std::function<void()> call, Deadline deadline) {
    std::future<void> done = Worker::instance().start(std::move(call));
    while (done.wait_for(look_interval) != std::future_status::ready)
        if (RunClock::now() >= deadline) return false;
    done.get();
    return true;
}

}  // namespace lockstep
