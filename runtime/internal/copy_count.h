// Counts copies between devices, including kernels' reads of peer memory, so that tests can see what a step transfers.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "lockstep/runtime/device.h"

namespace lockstep::copy_count {

struct Count {
    std::uint64_t copies = 0;
    std::uint64_t bytes = 0;
};

/// Counts one copy (or one kernel's read of a peer) of `bytes` bytes. Copies within one device are not counted.
void add(Device from, Device to, std::size_t bytes);
void reset();
/// Copies since `reset`, for every pair (from, to) with at least one.
std::map<std::pair<Device, Device>, Count> between_devices();

}  // namespace lockstep::copy_count
