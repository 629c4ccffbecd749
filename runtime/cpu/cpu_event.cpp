#include "lockstep/runtime/cpu/cpu_event.h"

#include <thread>

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
    {
        const std::scoped_lock lock(mutex_);
        if (ticket <= reached_) return;
        reached_ = ticket;
        reached_at_ = std::chrono::steady_clock::now();
    }
    changed_.notify_all();
}

void CpuEventState::await(std::uint64_t ticket, std::chrono::microseconds patience) const {
    if (patience.count() > 0) {
        const auto until = std::chrono::steady_clock::now() + patience;
        do {
            if (reached_ >= ticket) return;
            std::this_thread::yield();
        } while (std::chrono::steady_clock::now() < until);
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reached_ >= ticket; });
}

bool CpuEventState::reached(std::uint64_t ticket) const {
    const std::scoped_lock lock(mutex_);
    return reached_ >= ticket;
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
