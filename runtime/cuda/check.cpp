#include "lockstep/runtime/cuda/check.h"

#include <cuda.h>
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <mutex>
#include <string>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/process.h"

namespace lockstep::cuda {

namespace {

std::atomic<bool> lost{false};

struct Loss {
    std::mutex mutex;
    std::string message;
};
Loss& loss() {
    static auto* instance = new Loss;  // outlives every static destructor that may query it
    return *instance;
}

using PrimaryContextState = decltype(&cuDevicePrimaryCtxGetState);

/// The driver's function, looked up without linking the driver: the runtime's queries all create a context.
PrimaryContextState primary_context_state() {
    static const auto function = [] {
        void* found = nullptr;
        cudaDriverEntryPointQueryResult result{};
        constexpr const char* name = "cuDevicePrimaryCtxGetState";
#if CUDART_VERSION >= 12050
        check_quietly(cudaGetDriverEntryPointByVersion(name, &found, 7000, cudaEnableDefault, &result));
#else
        check_quietly(cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result));
#endif
        return reinterpret_cast<PrimaryContextState>(found);
    }();
    return function;
}

/// Called for a device that is not current: if the query creates a context, it does so on the current device, which
/// already has one.
bool has_context(int device) {
    constexpr std::size_t remembered = 64;
    static std::array<std::atomic<bool>, remembered> known{};  // contexts are permanent
    const auto index = static_cast<std::size_t>(device);
    if (index < remembered && known[index].load(std::memory_order_relaxed)) return true;
    const PrimaryContextState ask = primary_context_state();
    unsigned flags = 0;
    int active = 0;
    if (ask == nullptr || ask(device, &flags, &active) != CUDA_SUCCESS || active == 0) return false;
    if (index < remembered) known[index].store(true, std::memory_order_relaxed);
    return true;
}

}  // namespace

// According to driver_types.h, most of these require a restart of the process; the others mean that the device or the
// driver is lost.
bool loses_context(cudaError_t status) noexcept {
    switch (static_cast<int>(status)) {
        case cudaErrorCudartUnloading:
        case cudaErrorECCUncorrectable:
        case cudaErrorNvlinkUncorrectable:
        case 226:  // cudaErrorContained, unknown to CUDA 12.0
        case cudaErrorIllegalAddress:
        case cudaErrorLaunchTimeout:
        case cudaErrorContextIsDestroyed:
        case cudaErrorAssert:
        case cudaErrorHardwareStackError:
        case cudaErrorIllegalInstruction:
        case cudaErrorMisalignedAddress:
        case cudaErrorInvalidAddressSpace:
        case cudaErrorInvalidPc:
        case cudaErrorLaunchFailure:
        case 721:  // cudaErrorTensorMemoryLeak, unknown to CUDA 12.0
        case cudaErrorMpsClientTerminated:
        case cudaErrorExternalDevice:
        case cudaErrorUnknown: return true;
        default: return false;
    }
}

void check(cudaError_t status, std::string_view call, std::source_location where) {
    if (status == cudaSuccess) return;
    cudaGetLastError();
    int device = -1;
    if (cudaGetDevice(&device) != cudaSuccess) cudaGetLastError();
    std::string message =
        fmt::format("{} failed: {} ({}){}, at {}:{}", call, cudaGetErrorName(status), cudaGetErrorString(status),
                    device < 0 ? std::string() : fmt::format(" with CUDA device {} current", device), where.file_name(),
                    where.line());
    if (status == cudaErrorNoKernelImageForDevice)
        message +=
            "; this build has no code for the GPU; expected its compute capability in CMAKE_CUDA_ARCHITECTURES, such "
            "as 75 for 7.5";
    if (loses_context(status)) {
        const std::scoped_lock lock(loss().mutex);
        if (!lost) {
            message += "; the CUDA context is lost; expected a restart of the program";
            loss().message = message;
            lost = true;
        } else {
            message = loss().message;
        }
    }
    throw DeviceError(message);
}

void check_quietly(cudaError_t status) noexcept {
    if (status != cudaSuccess) cudaGetLastError();
}

bool is_healthy() noexcept { return !lost.load(std::memory_order_relaxed) && !forked::lost(DeviceKind::cuda); }

void require_healthy() {
    if (is_healthy()) return;
    forked::require("CUDA", Device::cuda(0));
    const std::scoped_lock lock(loss().mutex);
    throw DeviceError(loss().message);
}

ScopedDevice::ScopedDevice(int device) {
    require_healthy();
    check(cudaGetDevice(&previous_), "cudaGetDevice");
    if (device == previous_) return;
    check(cudaSetDevice(device), "cudaSetDevice");
    changed_ = true;
}

ScopedDevice::~ScopedDevice() {
    if (changed_ && has_context(previous_)) check_quietly(cudaSetDevice(previous_));
}

}  // namespace lockstep::cuda
