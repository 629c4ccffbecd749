// Results of kernels on CPU workers, which may throw.
#pragma once

#include <atomic>
#include <cstdint>

namespace lockstep {

struct Health {
    std::atomic<bool> failed{false};  ///< a kernel threw, and the host has not rethrown the exception yet; commits
                                      ///< check it as well
    std::atomic<std::int64_t> failed_step{-1};  ///< its step, if it belongs to backward
    std::atomic<std::int64_t> committing{-1};   ///< the last step of which a part was committed
};

}  // namespace lockstep
