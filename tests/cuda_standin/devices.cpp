// Devices, versions, peer access, and descriptions of errors.
#include <cuda.h>

#include <cstdio>
#include <cstring>

#include "lockstep/tests/cuda_standin/state.h"

namespace standin {
namespace {

struct CurrentDevice {
    std::uint64_t epoch = 0;
    int index = 0;
};

CurrentDevice& current() {
    thread_local CurrentDevice device;
    if (device.epoch != current_epoch()) device = {current_epoch(), 0};
    return device;
}

constexpr int kTooOldDriver = 11040;

int attribute_of(const Device& device, cudaDeviceAttr attribute) {
    switch (attribute) {
        case cudaDevAttrMultiProcessorCount: return device.config.sm_count;
        case cudaDevAttrComputeCapabilityMajor: return device.config.compute_capability / 10;
        case cudaDevAttrComputeCapabilityMinor: return device.config.compute_capability % 10;
        case cudaDevAttrMaxThreadsPerBlock: return 1024;
        case cudaDevAttrMaxBlockDimX: return 1024;
        case cudaDevAttrMaxGridDimX: return 0x7fffffff;
        case cudaDevAttrMaxThreadsPerMultiProcessor: return 2048;
        case cudaDevAttrMaxSharedMemoryPerBlock: return 48 << 10;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: return 163 << 10;
        case cudaDevAttrWarpSize: return 32;
        case cudaDevAttrL2CacheSize: return 40 << 20;
        case cudaDevAttrClockRate: return 1410000;
        case cudaDevAttrMemoryClockRate: return 1215000;
        case cudaDevAttrGlobalMemoryBusWidth: return 5120;
        case cudaDevAttrPciBusId: return device.physical + 1;
        case cudaDevAttrAsyncEngineCount: return 3;
        case cudaDevAttrUnifiedAddressing:
        case cudaDevAttrConcurrentKernels:
        case cudaDevAttrMemoryPoolsSupported:
        case cudaDevAttrStreamPrioritiesSupported:
        case cudaDevAttrCooperativeLaunch:
        case cudaDevAttrHostRegisterSupported:
        case cudaDevAttrCanUseHostPointerForRegisteredMem:
        case cudaDevAttrCanMapHostMemory: return 1;
        default: return 0;
    }
}

cudaDeviceProp properties_of(const Device& device) {
    cudaDeviceProp result{};
    std::snprintf(result.name, sizeof result.name, "Stand-in GPU %d", device.physical);
    std::memset(result.uuid.bytes, device.physical + 1, sizeof result.uuid.bytes);
    result.totalGlobalMem = device.config.memory;
    result.multiProcessorCount = device.config.sm_count;
    result.major = attribute_of(device, cudaDevAttrComputeCapabilityMajor);
    result.minor = attribute_of(device, cudaDevAttrComputeCapabilityMinor);
    result.warpSize = 32;
    result.maxThreadsPerBlock = result.maxThreadsDim[0] = result.maxThreadsDim[1] = 1024;
    result.maxThreadsDim[2] = 64;
    result.maxGridSize[0] = 0x7fffffff;
    result.maxGridSize[1] = result.maxGridSize[2] = 65535;
    result.maxThreadsPerMultiProcessor = attribute_of(device, cudaDevAttrMaxThreadsPerMultiProcessor);
    result.sharedMemPerBlock = 48 << 10;
    result.sharedMemPerBlockOptin = 163 << 10;
    result.l2CacheSize = attribute_of(device, cudaDevAttrL2CacheSize);
    result.memoryBusWidth = attribute_of(device, cudaDevAttrGlobalMemoryBusWidth);
    result.pciBusID = device.physical + 1;
    result.asyncEngineCount = 3;
    result.unifiedAddressing = result.concurrentKernels = result.canMapHostMemory = result.memoryPoolsSupported = 1;
    result.streamPrioritiesSupported = result.hostRegisterSupported = 1;
    return result;
}

struct ErrorText {
    cudaError_t code;
    const char* name;
    const char* text;
};

constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {cudaErrorPeerAccessNotEnabled, "cudaErrorPeerAccessNotEnabled", "peer access has not been enabled"},
    {cudaErrorPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported",
     "peer access is not supported between these two devices"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

ErrorText text_of(cudaError_t code) {
    for (const auto& each : kErrors)
        if (each.code == code) return each;
    return {code, "unrecognized error code", "unrecognized error code"};
}

}  // namespace

// cuDevicePrimaryCtxGetState, the only available function of the driver: a query that does not create a context.
CUresult primary_context_state(CUdevice device, unsigned int* flags, int* active) {
    State& shared = state();
    const std::scoped_lock lock(shared.mutex);
    if (device < 0 || static_cast<std::size_t>(device) >= shared.devices.size()) return CUDA_ERROR_INVALID_DEVICE;
    *flags = 0;
    *active = shared.contexts.contains(device) ? 1 : 0;
    return CUDA_SUCCESS;
}

cudaError_t driver_entry_point(const char* symbol, void** function, cudaDriverEntryPointQueryResult* result) {
    return runtime_call("cudaGetDriverEntryPoint", [&](Call&) {
        const bool known = std::strcmp(symbol, "cuDevicePrimaryCtxGetState") == 0;
        *function = known ? reinterpret_cast<void*>(&primary_context_state) : nullptr;
        if (result != nullptr) *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    });
}

int Call::current_device() const { return current().index; }
void Call::set_current_device(int device) { current().index = device; }

}  // namespace standin

using namespace standin;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
    *count = 0;
    return runtime_call("cudaGetDeviceCount",
                        [&](Call& call) { *count = static_cast<int>(call.state().devices.size()); });
}

cudaError_t cudaGetDevice(int* device) {
    return runtime_call("cudaGetDevice", [&](Call& call) { *device = call.current_device(); });
}

cudaError_t cudaSetDevice(int device) {
    return runtime_call("cudaSetDevice", [&](Call& call) {
        call.device(device);
        call.set_current_device(device);
        call.need_context(device);
    });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    return runtime_call("cudaGetDeviceProperties",
                        [&](Call& call) { *properties = properties_of(call.device(device)); });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    return runtime_call("cudaDeviceGetAttribute",
                        [&](Call& call) { *value = attribute_of(call.device(device), attribute); });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
    return runtime_call("cudaDeviceGetPCIBusId", [&](Call& call) {
        std::snprintf(text, static_cast<std::size_t>(length), "0000:%02x:00.0", call.device(device).physical + 1);
    });
}

// The two version queries work without a driver, so they skip the checks of other calls.
cudaError_t cudaDriverGetVersion(int* version) {
    const Driver driver = state().config.driver;
    *version = driver == Driver::present ? CUDART_VERSION : driver == Driver::too_old ? kTooOldDriver : 0;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long /*flags*/,
                                    cudaDriverEntryPointQueryResult* result) {
    return driver_entry_point(symbol, function, result);
}
#if CUDART_VERSION >= 12050
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int /*version*/,
                                             unsigned long long /*flags*/, cudaDriverEntryPointQueryResult* result) {
    return driver_entry_point(symbol, function, result);
}
#endif

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
    return runtime_call("cudaDeviceCanAccessPeer", [&](Call& call) {
        call.device(device);
        call.device(peer);
        *can = device != peer && call.state().config.peer_access ? 1 : 0;
    });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
    return runtime_call("cudaDeviceEnablePeerAccess", [&](Call& call) {
        call.device(peer);
        Device& device = call.device(call.current_device());
        if (flags != 0) refuse(cudaErrorInvalidValue, Kind::invalid_argument, "flags must be 0");
        if (peer == call.current_device() || !call.state().config.peer_access)
            refuse(cudaErrorPeerAccessUnsupported, Kind::no_peer_access, "these devices have no peer access");
        call.need_context(peer);
        if (!device.peers.insert(peer).second) throw Failure{cudaErrorPeerAccessAlreadyEnabled};
        call.state().memory_of_launches.clear();
    });
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
    return runtime_call("cudaDeviceDisablePeerAccess", [&](Call& call) {
        call.device(peer);
        if (call.device(call.current_device()).peers.erase(peer) == 0) throw Failure{cudaErrorPeerAccessNotEnabled};
        call.state().memory_of_launches.clear();
    });
}

cudaError_t cudaGetLastError() { return last_error(true); }
cudaError_t cudaPeekAtLastError() { return last_error(false); }
const char* cudaGetErrorName(cudaError_t code) { return text_of(code).name; }
const char* cudaGetErrorString(cudaError_t code) { return text_of(code).text; }

}  // extern "C"
