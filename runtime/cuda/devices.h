// Available CUDA devices: the driver's GPUs, each split into LOCKSTEP_DEVICES_PER_GPU logical devices.
#pragma once

#include <string>

#include "lockstep/runtime/device.h"

namespace lockstep::cuda {

/// Devices offered by the driver. Never throws: any error means no devices.
struct Inventory {
    int gpus = 0;
    std::string absence;  ///< reason why there are no devices; otherwise empty
};
Inventory look_for_gpus();

/// LOCKSTEP_DEVICES_PER_GPU, default 1. Throws InvalidArgument if malformed.
int devices_per_gpu();

/// Name, memory and units of GPU `gpu`, as reported by the driver. Free memory is reported only if `in_use`, because
/// the query needs a context.
DeviceInfo gpu_info(int gpu, bool in_use);

/// Equal for two GPUs if libraries choose the same kernels for both: compute capability and multiprocessors.
std::uint64_t hardware_of(int gpu);

/// Whether kernels on `reader` can be given access to memory of `owner` (runtime indices).
bool can_open_peer(int reader, int owner);
/// Enables that access; false if the hardware does not support it. Creates contexts on both.
bool open_peer(int reader, int owner);

}  // namespace lockstep::cuda
