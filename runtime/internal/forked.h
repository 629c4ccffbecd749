// What a child of fork() lacks: the library's threads and the driver's contexts stay with its parent.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/runtime/device.h"

namespace lockstep::forked {

/// How many forks lie between the process that first asked and this one. What is made before a fork has another number
/// than what is made after it, and belongs to the parent: in the child it is neither used nor taken down.
int generation();

extern std::array<std::atomic<bool>, 2> lost_kinds;  ///< by DeviceKind
[[noreturn]] void throw_lost(std::string_view call, Device device);

/// Whether devices of this kind are lost: they were in use when this process was forked.
inline bool lost(DeviceKind kind) noexcept {
    return lost_kinds[static_cast<std::size_t>(kind)].load(std::memory_order_relaxed);
}
/// Throws InvalidArgument, in the name of `call`, where `device` is lost.
inline void require(std::string_view call, Device device) {
    if (!device.is_host() && lost(device.kind())) throw_lost(call, device);
}
/// Throws InvalidArgument, in the name of `call`: `thing` ("this model") was made before the fork.
[[noreturn]] void refuse(std::string_view call, std::string_view thing);

/// The CUDA driver has been asked something: children cannot use it any more.
void note_driver();
/// The host has worked with several threads: children work with one, as OpenMP's others stay behind.
void note_host_threads() noexcept;
bool lost_host_threads() noexcept;

/// Devices of this process that a child forked now would lack, in words; empty: none.
std::string in_use();

/// Keeps what the parent made to the end of this process: its destructors would wait for threads that are not here.
void keep(std::shared_ptr<const void> thing);

}  // namespace lockstep::forked
