// Deadlines of blocking calls.
#pragma once

#include <chrono>

namespace lockstep {

/// When a blocking call must have returned or thrown.
using Deadline = std::chrono::steady_clock::time_point;

}  // namespace lockstep
