// Return codes of the CUDA runtime as exceptions. No call's code goes unread.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>
#include <string_view>

namespace lockstep::cuda {

/// Throws DeviceError (call, status, current device, file, line) unless `status` is success, after taking the error out
/// of the runtime's memory, where the next innocent call would find it. An error that the context does not survive is
/// remembered: see `require_healthy`.
void check(cudaError_t status, std::string_view call, std::source_location where = std::source_location::current());

/// For destructors: takes the error, throws nothing.
void check_quietly(cudaError_t status) noexcept;

/// Throws what `check` threw when the context was lost; no CUDA call can succeed any more.
void require_healthy();
bool is_healthy() noexcept;

/// Makes a device current and gives the caller's back. `device` is the runtime's index.
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

}  // namespace lockstep::cuda
