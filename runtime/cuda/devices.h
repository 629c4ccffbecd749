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

/// Name, memory and units of GPU `gpu`, as the driver tells them.
DeviceInfo gpu_info(int gpu);

/// Lets kernels on `reader` read memory of `owner` (runtime indices); false where the hardware cannot.
bool open_peer(int reader, int owner);

}  // namespace lockstep::cuda
