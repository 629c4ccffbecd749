// Return codes of the CUDA runtime as exceptions. Every call is checked.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>
#include <string_view>

namespace lockstep::cuda {

/// Throws DeviceError (call, status, current device, file, line) unless `status` is success. Clears the runtime's last
/// error, which the next unrelated call would otherwise report. An error that the context does not survive is recorded:
/// see `require_healthy`.
void check(cudaError_t status, std::string_view call, std::source_location where = std::source_location::current());

/// For destructors: clears the error, never throws.
void check_quietly(cudaError_t status) noexcept;

/// Whether no CUDA call of this process can succeed after that error.
bool loses_context(cudaError_t status) noexcept;
/// Rethrows the error with which the context was lost.
void require_healthy();
bool is_healthy() noexcept;

/// Makes a device current and restores the caller's device afterwards. A thread that has not used a device yet stays on
/// this one: since CUDA 12, cudaSetDevice creates a context, which takes half a gigabyte of device memory, and this
/// process may not use device 0, the initial device of every thread. `device` is the runtime's index.
class ScopedDevice {
public:
    explicit ScopedDevice(int device);
    ~ScopedDevice();
    ScopedDevice(const ScopedDevice&) = delete;
    ScopedDevice& operator=(const ScopedDevice&) = delete;

private:
    int previous_ = 0;
    bool changed_ = false;
};

/// For destructors: calls `function` with `device` current, unless the context is lost. Never throws.
template <class Call>
void quietly_on(int device, Call&& call) noexcept {
    if (!is_healthy()) return;
    try {
        const ScopedDevice scope(device);
        check_quietly(call());
    } catch (...) {  // the device is lost, and with it the resource to release
    }
}

}  // namespace lockstep::cuda
