#include "lockstep/parallel/comm/group/work_state.h"

#include "lockstep/runtime/error.h"

namespace lockstep {

void WorkState::set(Status status, int source, const std::string& message) {
    const std::scoped_lock lock(mutex_);
    if (status_ != Status::pending) return;
    status_ = status;
    source_ = source;
    message_ = message;
    changed_.notify_all();
}

bool WorkState::done() const {
    const std::scoped_lock lock(mutex_);
    return status_ != Status::pending;
}

bool WorkState::wait_until(std::chrono::steady_clock::time_point time) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, time, [&] { return status_ != Status::pending; });
}

void WorkState::wait() const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return status_ != Status::pending; });
}

void WorkState::check() const {
    const std::scoped_lock lock(mutex_);
    if (status_ == Status::failed) throw CommunicationError(message_);
}

int WorkState::source() const {
    const std::scoped_lock lock(mutex_);
    return source_;
}

}  // namespace lockstep
