// Whether a job can go on, known to all of its groups in this process.
#pragma once

#include <atomic>
#include <chrono>

namespace lockstep {

/// Set by the first group that cannot go on. Then nobody is waited for when groups and the rendezvous are destroyed:
/// who has not answered until the deadline would not answer now.
class JobFailure {
public:
    void note() { noted_ = true; }
    bool noted() const { return noted_; }
    /// How long who leaves waits for others that would wait for `usual` in a job that is well.
    std::chrono::milliseconds patience(std::chrono::milliseconds usual) const {
        return noted_ ? std::chrono::milliseconds(100) : usual;
    }

private:
    std::atomic<bool> noted_{false};
};

}  // namespace lockstep
