// Gives a test program eight virtual devices, before anything asks how many there are.
#pragma once

#include <vector>

#include "lockstep/runtime/device.h"
#include "lockstep/tests/cpu_devices.h"

namespace lockstep::test {

inline const bool eight_devices_set = set_cpu_devices(8);

/// cpu:0 to cpu:count - 1.
inline Devices cpu_devices(int count) {
    std::vector<Device> devices;
    for (int i = 0; i < count; ++i) devices.push_back(Device::cpu(i));
    return {devices};
}

}  // namespace lockstep::test
