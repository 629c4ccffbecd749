#include "lockstep/parallel/data/internal/batch_reader.h"

#include <algorithm>

namespace lockstep::internal {

BatchReader::BatchReader(std::shared_ptr<const detail::RowSource> source, int workers, std::size_t slots)
    : source_(std::move(source)), slots_(slots) {
    try {
        for (int i = 0; i < workers; ++i) threads_.emplace_back([this] { serve(); });
    } catch (...) {  // the system refuses more threads: the running ones must end before the members are destroyed
        {
            const std::scoped_lock lock(mutex_);
            stop_ = true;
        }
        work_.notify_all();
        for (std::thread& thread : threads_) thread.join();
        throw;
    }
}

BatchReader::~BatchReader() {
    cancel();
    {
        const std::scoped_lock lock(mutex_);
        stop_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void BatchReader::read(Slot& slot) const noexcept {
    try {
        source_->read(slot.rows, slot.to, slot.epoch);
    } catch (...) {
        slot.error = std::current_exception();
    }
}

void BatchReader::serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
        work_.wait(lock, [&] { return stop_ || !queue_.empty(); });
        if (stop_) return;
        Slot& slot = slots_[queue_.front()];
        queue_.pop_front();
        ++busy_;
        lock.unlock();
        read(slot);
        lock.lock();
        --busy_;
        slot.filled = true;
        done_.notify_all();
    }
}

void BatchReader::fill(std::size_t slot, std::span<const std::int64_t> rows, std::span<std::byte* const> to,
                       EpochKey epoch) {
    {
        const std::scoped_lock lock(mutex_);
        slots_[slot] = {rows, to, epoch, false, nullptr};
        if (!threads_.empty()) queue_.push_back(slot);
    }
    if (threads_.empty()) {
        read(slots_[slot]);
        slots_[slot].filled = true;
    } else {
        work_.notify_one();
    }
}

bool BatchReader::ready(std::size_t slot) {
    const std::scoped_lock lock(mutex_);
    return slots_[slot].filled && !slots_[slot].error;
}

void BatchReader::wait(std::size_t slot) {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return slots_[slot].filled; });
    if (slots_[slot].error) std::rethrow_exception(std::exchange(slots_[slot].error, nullptr));
}

void BatchReader::cancel() noexcept {
    std::unique_lock lock(mutex_);
    queue_.clear();
    done_.wait(lock, [&] { return busy_ == 0; });
}

bool BatchReader::is_reading_here() const {
    return std::any_of(threads_.begin(), threads_.end(),
                       [](const std::thread& thread) { return thread.get_id() == std::this_thread::get_id(); });
}

}  // namespace lockstep::internal
