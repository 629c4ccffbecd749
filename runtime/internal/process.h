// The process: environment variables, exit and fork.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/runtime/device.h"

namespace lockstep::environment {

// Environment variables, read strictly: a malformed value is an error, never a default.

/// True for "1", false when unset, empty or "0". Throws InvalidEnvironment for anything else.
bool flag(const char* name);
/// The integer, or nullopt if unset or empty. Throws InvalidEnvironment if it is not an integer in [low, high].
std::optional<std::int64_t> integer(const char* name, std::int64_t low, std::int64_t high);
/// The position of the value in `words`, or nullopt if unset or empty. Throws InvalidEnvironment for anything else.
std::optional<std::size_t> one_of(const char* name, std::initializer_list<std::string_view> words);

}  // namespace lockstep::environment

namespace lockstep::internal {

/// Opens standard streams that are closed on /dev/null. The next file or socket would get their descriptors, and then
/// everything that the program prints.
void open_standard_streams() noexcept;

}  // namespace lockstep::internal

namespace lockstep::process_exit {

// End of the process: any thread may call exit() while others train.

extern std::atomic<bool> has_begun;
/// Set by the streams once some exist. A launcher has none and does not link them.
extern std::atomic<void (*)()> wait_for_devices;

/// True after exit() was called: the thread that called it is destroying static objects.
inline bool begun() noexcept { return has_begun.load(std::memory_order_relaxed); }

/// Makes exit() stop the other threads and wait for the devices before it destroys any currently existing static
/// object. Called whenever libraries may have created some: handlers run in reverse order.
void watch();

/// For a call that gives a device work: a thread other than the one that called exit() blocks here until the process
/// ends. After a long time it throws DeviceError, because the exiting thread probably waits for this one.
void hold_back(std::string_view call);

}  // namespace lockstep::process_exit

namespace lockstep::forked {

// Child processes of fork(): the library's threads and the driver's contexts remain with the parent.

/// Number of forks between the process of the first call and this one. Objects created before a fork have a smaller
/// number and belong to the parent: the child neither uses nor destroys them.
int generation();

extern std::array<std::atomic<bool>, 2> lost_kinds;  ///< by DeviceKind
[[noreturn]] void throw_lost(std::string_view call, Device device);

/// Whether devices of this kind are lost: they were in use when this process was forked.
inline bool lost(DeviceKind kind) noexcept {
    return lost_kinds[static_cast<std::size_t>(kind)].load(std::memory_order_relaxed);
}
/// Throws InvalidArgument, in the name of `call`, if `device` is lost.
inline void require(std::string_view call, Device device) {
    if (!device.is_host() && lost(device.kind())) throw_lost(call, device);
}
/// Throws InvalidArgument, in the name of `call`: `thing` ("this model") was created before the fork.
[[noreturn]] void refuse(std::string_view call, std::string_view thing);

/// Records a call of the CUDA driver: children cannot use the driver afterwards.
void note_driver();
/// Records that the host has used several threads: children use one, because OpenMP's other threads are not forked.
void note_host_threads() noexcept;
bool lost_host_threads() noexcept;

/// Devices of this process that a child forked now would lack, as text; empty if none.
std::string in_use();

/// Leaks an object of the parent: its destructor would wait for threads that do not exist in this process.
void keep(std::shared_ptr<const void> thing);

}  // namespace lockstep::forked
