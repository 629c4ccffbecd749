#include "lockstep/runtime/cuda/check.h"

#include <fmt/format.h>

#include <atomic>
#include <mutex>
#include <string>

#include "lockstep/runtime/error.h"

namespace lockstep::cuda {

namespace {

std::atomic<bool> lost{false};

struct Loss {
    std::mutex mutex;
    std::string message;
};
Loss& loss() {
    static auto* instance = new Loss;  // outlives every static destructor that may ask
    return *instance;
}

/// Errors after which the runtime's manual says that the process must be started again.
bool loses_context(cudaError_t status) {
    switch (status) {
        case cudaErrorECCUncorrectable:
        case cudaErrorNvlinkUncorrectable:
        case cudaErrorHardwareStackError:
        case cudaErrorIllegalAddress:
        case cudaErrorIllegalInstruction:
        case cudaErrorMisalignedAddress:
        case cudaErrorInvalidAddressSpace:
        case cudaErrorInvalidPc:
        case cudaErrorLaunchFailure:
        case cudaErrorLaunchTimeout:
        case cudaErrorAssert:
        case cudaErrorContextIsDestroyed:
        case cudaErrorUnknown: return true;
        default: return false;
    }
}

}  // namespace

void check(cudaError_t status, std::string_view call, std::source_location where) {
    if (status == cudaSuccess) return;
    cudaGetLastError();
    int device = -1;
    if (cudaGetDevice(&device) != cudaSuccess) cudaGetLastError();
    std::string message =
        fmt::format("{} failed: {} ({}){}, at {}:{}", call, cudaGetErrorName(status), cudaGetErrorString(status),
                    device < 0 ? std::string() : fmt::format(" with CUDA device {} current", device), where.file_name(),
                    where.line());
    if (loses_context(status)) {
        const std::scoped_lock lock(loss().mutex);
        if (!lost) {
            message += "; the CUDA context is lost, restart the program";
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

bool is_healthy() noexcept { return !lost.load(std::memory_order_relaxed); }

void require_healthy() {
    if (is_healthy()) return;
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
    if (changed_) check_quietly(cudaSetDevice(previous_));
}

}  // namespace lockstep::cuda
