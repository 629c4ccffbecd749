// Events of CPU streams: a counter that is raised when the stream gets there.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "lockstep/runtime/internal/backend.h"

namespace lockstep {

class CpuQueue;

/// Shared with the work items in the queues, which may outlive the event.
class CpuEventState {
public:
    /// A new record; the ticket names it.
    std::uint64_t issue();
    std::uint64_t issued() const;
    /// The stream got to record `ticket`.
    void reach(std::uint64_t ticket);
    /// Blocks the host.
    void await(std::uint64_t ticket) const;
    bool reached(std::uint64_t ticket) const { return reached_ >= ticket; }
    /// `queue` is told when `ticket` is reached. False when it has been.
    bool announce_to(std::shared_ptr<CpuQueue> queue, std::uint64_t ticket);
    std::chrono::steady_clock::time_point reached_at() const;

private:
    mutable std::mutex mutex_;
    mutable std::condition_variable changed_;
    mutable int awaited_ = 0;  ///< hosts that wait
    std::uint64_t issued_ = 0;
    std::atomic<std::uint64_t> reached_ = 0;
    std::chrono::steady_clock::time_point reached_at_;
    std::vector<std::pair<std::uint64_t, std::shared_ptr<CpuQueue>>> waiting_;
};

class CpuEvent final : public EventImpl {
public:
    bool done() const override { return state_->reached(state_->issued()); }
    void synchronize() const override { state_->await(state_->issued()); }
    double elapsed_ms_since(const EventImpl& from) const override;
    bool recorded() const override { return state_->issued() > 0; }
    const std::shared_ptr<CpuEventState>& state() const { return state_; }

private:
    std::shared_ptr<CpuEventState> state_ = std::make_shared<CpuEventState>();
};

}  // namespace lockstep
