// Failure state of a job, shared by all of its groups in this process.
#pragma once

#include <atomic>
#include <chrono>

namespace lockstep {

/// Set by the first group that fails. Then destructors of groups and of the rendezvous do not wait for other ranks: a
/// rank that has not answered by the deadline will not answer later.
class JobFailure {
public:
    void note() { noted_ = true; }
    bool noted() const { return noted_; }
    /// Time that a leaving rank waits for others, which is `usual` in a job that has not failed.
    std::chrono::milliseconds patience(std::chrono::milliseconds usual) const {
        return noted_ ? std::chrono::milliseconds(100) : usual;
    }

private:
    std::atomic<bool> noted_{false};
};

}  // namespace lockstep
