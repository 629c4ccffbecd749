// cuDNN and cuBLASLt: handles, return codes, descriptors.
#pragma once

#include <cublasLt.h>
#include <cudnn.h>

#include <mutex>
#include <source_location>
#include <string_view>
#include <utility>

#include "lockstep/runtime/cuda/check.h"
#include "lockstep/runtime/device.h"

namespace lockstep::cuda {

/// Throw DeviceError (call, status, device, file, line) unless the call succeeded.
void check(cudnnStatus_t status, std::string_view call, std::source_location where = std::source_location::current());
void check(cublasStatus_t status, std::string_view call, std::source_location where = std::source_location::current());
/// True if the call reports support, false if not; other failures throw.
bool is_supported(cudnnStatus_t status, std::string_view call,
                  std::source_location where = std::source_location::current());

/// Handles of one (logical) device. A cuDNN handle has a current stream: hold `mutex` while using it.
struct Libraries {
    cudnnHandle_t dnn = nullptr;
    cublasLtHandle_t blas = nullptr;
    std::mutex mutex;
};
/// Created on first use. The device must be current, as it is inside a kernel's `run`.
Libraries& libraries_of(Device device);

/// For queries at the creation of kernels, before any stream is known; makes their device current.
class DeviceQuery {
public:
    explicit DeviceQuery(Device device);
    Libraries& libraries() { return libraries_; }

private:
    ScopedDevice scope_;
    Libraries& libraries_;
};

/// Owns a descriptor of either library.
template <class Handle, auto create, auto destroy>
class Descriptor {
public:
    template <class... Arguments>
    explicit Descriptor(const char* what, Arguments... arguments) {
        check(create(&handle_, arguments...), what);
    }
    ~Descriptor() {
        // A descriptor is host memory: destroying it fails only if it was never created.
        if (handle_ != nullptr) static_cast<void>(destroy(handle_));
    }
    Descriptor(Descriptor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Descriptor& operator=(Descriptor&&) = delete;
    Handle get() const { return handle_; }

private:
    Handle handle_ = nullptr;
};

}  // namespace lockstep::cuda
