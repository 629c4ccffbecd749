// Which CUDA devices there are: the driver's, each split in LOCKSTEP_DEVICES_PER_GPU logical ones.
#pragma once

#include <string>

#include "lockstep/runtime/device.h"

namespace lockstep::cuda {

/// What the driver offers. Never throws: any error means no device.
struct Inventory {
    int gpus = 0;
    std::string absence;  ///< why there are none; empty when there are some
};
Inventory look_for_gpus();

/// LOCKSTEP_DEVICES_PER_GPU, 1 unless set. Throws InvalidArgument when malformed.
int devices_per_gpu();

/// Name, memory and units of GPU `gpu`, as the driver tells them. What is free is told only of one that is `in_use`:
/// the question takes a context.
DeviceInfo gpu_info(int gpu, bool in_use);

/// A number that two GPUs share when libraries choose alike for both: compute capability and multiprocessors.
std::uint64_t hardware_of(int gpu);

/// Whether kernels on `reader` can be let to read memory of `owner` (runtime indices).
bool can_open_peer(int reader, int owner);
/// Lets them; false where the hardware cannot. Makes contexts on both.
bool open_peer(int reader, int owner);

}  // namespace lockstep::cuda
