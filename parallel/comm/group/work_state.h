// Result of an operation for its waiters.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>

namespace lockstep {

class WorkState {
public:
    void succeed(int source) { set(Status::succeeded, source, {}); }
    void fail(const std::string& message) { set(Status::failed, -1, message); }

    bool done() const;
    /// False when it is not done by then.
    bool wait_until(std::chrono::steady_clock::time_point time) const;
    void wait() const;
    /// Throws CommunicationError where it failed. Only once it is done.
    void check() const;
    int source() const;

private:
    enum class Status : unsigned char { pending, succeeded, failed };
    void set(Status status, int source, const std::string& message);

    mutable std::mutex mutex_;
    mutable std::condition_variable changed_;
    Status status_ = Status::pending;
    int source_ = -1;
    std::string message_;
};

}  // namespace lockstep
