// Until when.
#pragma once

#include <chrono>

namespace lockstep {

/// When a call must have ended, one way or the other.
using Deadline = std::chrono::steady_clock::time_point;

}  // namespace lockstep
