// The end of the process: exit() may be called by any thread, while others train.
#pragma once

#include <atomic>
#include <string_view>

namespace lockstep::ending {

extern std::atomic<bool> has_begun;
/// Set by the streams, once there are some. A launcher has none, and does not link them.
extern std::atomic<void (*)()> wait_for_devices;

/// exit() has been called. Static objects are being destroyed, by the thread that called it.
inline bool begun() noexcept { return has_begun.load(std::memory_order_relaxed); }

/// Makes exit() stop the other threads and wait for the devices before it destroys any static object that exists now.
/// Called whenever libraries may have made some: handlers run in the opposite order.
void watch();

/// For a call that gives a device work: a thread other than the one that called exit() waits here for the end of the
/// process. If that takes so long that somebody must be waiting for the thread, throws DeviceError.
void hold_back(std::string_view call);

}  // namespace lockstep::ending
