#include "lockstep/runtime/cpu/cpu_event.h"

#include "lockstep/runtime/cpu/cpu_queue.h"

namespace lockstep {

std::uint64_t CpuEventState::issue() {
    const std::scoped_lock lock(mutex_);
    return ++issued_;
}

std::uint64_t CpuEventState::issued() const {
    const std::scoped_lock lock(mutex_);
    return issued_;
}

void CpuEventState::reach(std::uint64_t ticket) {
    std::vector<std::shared_ptr<CpuQueue>> told;
    {
        const std::scoped_lock lock(mutex_);
        if (ticket <= reached_) return;
        reached_ = ticket;
        reached_at_ = std::chrono::steady_clock::now();
        std::erase_if(waiting_, [&](auto& entry) {
            if (entry.first > ticket) return false;
            told.push_back(std::move(entry.second));
            return true;
        });
        if (awaited_ > 0) changed_.notify_all();
    }
    for (const auto& queue : told) queue->announce();
}

void CpuEventState::await(std::uint64_t ticket) const {
    std::unique_lock lock(mutex_);
    ++awaited_;
    while (!changed_.wait_for(lock, forgotten, [&] { return reached_ >= ticket; })) {
        lock.unlock();
        wake_offered_queues();
        lock.lock();
    }
    --awaited_;
}

bool CpuEventState::announce_to(std::shared_ptr<CpuQueue> queue, std::uint64_t ticket) {
    const std::scoped_lock lock(mutex_);
    if (reached_ >= ticket) return false;
    waiting_.emplace_back(ticket, std::move(queue));
    return true;
}

std::chrono::steady_clock::time_point CpuEventState::reached_at() const {
    const std::scoped_lock lock(mutex_);
    return reached_at_;
}

double CpuEvent::elapsed_ms_since(const EventImpl& from) const {
    const auto& start = static_cast<const CpuEvent&>(from);
    return std::chrono::duration<double, std::milli>(state_->reached_at() - start.state_->reached_at()).count();
}

}  // namespace lockstep
