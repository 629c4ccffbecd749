// Events of CPU streams: a counter that is raised when the stream reaches the event.
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

/// Shared with queued work items, which may outlive the event.
class CpuEventState {
public:
    /// Starts a new record and returns its ticket.
    std::uint64_t issue();
    std::uint64_t issued() const;
    /// Called when the stream has reached record `ticket`.
    void reach(std::uint64_t ticket);
    /// Blocks the host.
    void await(std::uint64_t ticket) const;
    bool reached(std::uint64_t ticket) const { return reached_ >= ticket; }
    /// Registers `queue` for notification when `ticket` is reached. False if it was reached already.
    bool announce_to(std::shared_ptr<CpuQueue> queue, std::uint64_t ticket);
    std::chrono::steady_clock::time_point reached_at() const;

private:
    mutable std::mutex mutex_;
    mutable std::condition_variable changed_;
    mutable int awaited_ = 0;  ///< waiting hosts
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
