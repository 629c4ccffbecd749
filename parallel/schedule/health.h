// Results of kernels on CPU workers, which may throw.
#pragma once

#include <atomic>
#include <cstdint>

namespace lockstep {

struct Health {
    std::atomic<bool> failed{false};  ///< a kernel threw, and the host has not rethrown it yet; commits look here too
    std::atomic<std::int64_t> failed_step{-1};  ///< its step, where it belongs to backward
    std::atomic<std::int64_t> committing{-1};   ///< the last step of which something was committed
};

}  // namespace lockstep
