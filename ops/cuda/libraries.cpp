#include "lockstep/ops/cuda/libraries.h"

#include <fmt/format.h>

#include <map>
#include <memory>

#include "lockstep/runtime/cuda/cuda_backend.h"
#include "lockstep/runtime/error.h"

namespace lockstep::cuda {

namespace {

[[noreturn]] void fail(std::string_view call, std::string_view status, std::source_location where) {
    // What the library stumbled over may be an error of the context: that one is told, and remembered.
    check(cudaGetLastError(), call, where);
    int device = -1;
    check_quietly(cudaGetDevice(&device));
    throw DeviceError(fmt::format("{} failed: {} with CUDA device {} current, at {}:{}", call, status, device,
                                  where.file_name(), where.line()));
}

}  // namespace

void check(cudnnStatus_t status, std::string_view call, std::source_location where) {
    if (status != CUDNN_STATUS_SUCCESS) fail(call, cudnnGetErrorString(status), where);
}

void check(cublasStatus_t status, std::string_view call, std::source_location where) {
    if (status != CUBLAS_STATUS_SUCCESS) fail(call, cublasLtGetStatusString(status), where);
}

bool is_supported(cudnnStatus_t status, std::string_view call, std::source_location where) {
    if (status == CUDNN_STATUS_SUCCESS) return true;
    const char* text = cudnnGetErrorString(status);
    // cuDNN 9 gives reasons of their own numbers (3000 to 3999) where cuDNN 8 says NOT_SUPPORTED (3000 in 9).
    if (status == CUDNN_STATUS_NOT_SUPPORTED || status / 1000 == CUDNN_STATUS_NOT_SUPPORTED / 1000) return false;
    fail(call, text, where);
}

Libraries& libraries_of(Device device) {
    // Never destroyed: at exit the driver may be gone before us.
    static auto* mutex = new std::mutex;
    static auto* all = new std::map<Device, std::unique_ptr<Libraries>>;
    const std::scoped_lock lock(*mutex);
    auto& entry = (*all)[device];
    if (!entry) {
        auto made = std::make_unique<Libraries>();
        check(cudnnCreate(&made->dnn), "cudnnCreate");
        check(cublasLtCreate(&made->blas), "cublasLtCreate");
        entry = std::move(made);
    }
    return *entry;
}

AskingDevice::AskingDevice()
    : device_(Device::cuda(backend().any_device())),
      scope_(backend().gpu_of(device_)),
      libraries_(libraries_of(device_)) {}

}  // namespace lockstep::cuda
