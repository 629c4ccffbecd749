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

/// Whether no CUDA call of this process can succeed after that error.
bool loses_context(cudaError_t status) noexcept;
/// Throws what `check` threw when the context was lost.
void require_healthy();
bool is_healthy() noexcept;

/// Makes a device current, then again the one that the caller had. A thread that has used no device so far stays on
/// this one: since CUDA 12 cudaSetDevice makes a context, which takes half a gigabyte of the device, and device 0, on
/// which every thread begins, may not be one that this process uses. `device` is the runtime's index.
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

/// For destructors: makes a call with `device` current, unless the context is lost. Throws nothing.
template <class Call>
void quietly_on(int device, Call&& call) noexcept {
    if (!is_healthy()) return;
    try {
        const ScopedDevice scope(device);
        check_quietly(call());
    } catch (...) {  // the device is lost, and what was to be given back with it
    }
}

}  // namespace lockstep::cuda
