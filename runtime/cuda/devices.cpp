#include "lockstep/runtime/cuda/devices.h"

#include <fmt/format.h>

#include "lockstep/runtime/cuda/check.h"
#include "lockstep/runtime/internal/process.h"

namespace lockstep::cuda {

Inventory look_for_gpus() {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status == cudaSuccess && count > 0) return {count, {}};
    if (status == cudaSuccess) return {0, "the CUDA driver shows no GPU"};
    cudaGetLastError();
    if (status == cudaErrorNoDevice)
        return {0, "the CUDA driver shows no GPU (not installed, or hidden by CUDA_VISIBLE_DEVICES)"};
    if (status == cudaErrorInsufficientDriver) {
        // A driver that is too old and a missing one return the same code; the version tells them apart.
        int driver = 0;
        const cudaError_t asked = cudaDriverGetVersion(&driver);
        check_quietly(asked);
        if (asked != cudaSuccess || driver == 0) return {0, "no CUDA driver"};
        return {0, fmt::format("the CUDA driver is too old: it supports CUDA {}.{}, this build needs {}.{}",
                               driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10)};
    }
    return {0, fmt::format("{} ({})", cudaGetErrorString(status), cudaGetErrorName(status))};
}

int devices_per_gpu() { return static_cast<int>(environment::integer("LOCKSTEP_DEVICES_PER_GPU", 1, 64).value_or(1)); }

DeviceInfo gpu_info(int gpu, bool in_use) {
    require_healthy();
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, gpu), "cudaGetDeviceProperties");
    DeviceInfo info;
    info.name = properties.name;
    info.total_memory = properties.totalGlobalMem;
    if (in_use) {
        const ScopedDevice scope(gpu);
        std::size_t free = 0;
        check(cudaMemGetInfo(&free, &info.total_memory), "cudaMemGetInfo");
        info.free_memory = free;
    }
    info.units = properties.multiProcessorCount;
    info.cache_bytes = static_cast<std::size_t>(properties.l2CacheSize);
    info.physical_index = gpu;
    info.bus_id =
        fmt::format("{:04x}:{:02x}:{:02x}.0", properties.pciDomainID, properties.pciBusID, properties.pciDeviceID);
    info.compute_capability = properties.major * 10 + properties.minor;
    return info;
}

std::uint64_t hardware_of(int gpu) {
    require_healthy();
    std::uint64_t number = 0;
    for (const cudaDeviceAttr attribute :
         {cudaDevAttrComputeCapabilityMajor, cudaDevAttrComputeCapabilityMinor, cudaDevAttrMultiProcessorCount}) {
        int value = 0;
        check(cudaDeviceGetAttribute(&value, attribute, gpu), "cudaDeviceGetAttribute");
        number = number << 16 | static_cast<std::uint16_t>(value);
    }
    return number;
}

bool can_open_peer(int reader, int owner) {
    int possible = 0;
    check(cudaDeviceCanAccessPeer(&possible, reader, owner), "cudaDeviceCanAccessPeer");
    return possible != 0;
}

bool open_peer(int reader, int owner) {
    if (!can_open_peer(reader, owner)) return false;
    const ScopedDevice scope(reader);
    const cudaError_t status = cudaDeviceEnablePeerAccess(owner, 0);
    if (status == cudaSuccess) return true;
    if (status != cudaErrorPeerAccessAlreadyEnabled && status != cudaErrorTooManyPeers &&
        status != cudaErrorPeerAccessUnsupported)
        check(status, "cudaDeviceEnablePeerAccess");
    cudaGetLastError();
    return status == cudaErrorPeerAccessAlreadyEnabled;
}

}  // namespace lockstep::cuda
