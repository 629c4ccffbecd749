#include "lockstep/ops/cuda/libraries.h"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "lockstep/runtime/cuda/cuda_backend.h"
#include "lockstep/runtime/error.h"

namespace lockstep::cuda {

namespace {

[[noreturn]] void fail(std::string_view call, std::string_view status, std::source_location where) {
    // The library may have failed because of an error of the context: that one is thrown and recorded.
    if (const cudaError_t last = cudaGetLastError(); loses_context(last)) check(last, call, where);
    int device = -1;
    check_quietly(cudaGetDevice(&device));
    throw DeviceError(fmt::format(
        "{} failed: {} with CUDA device {} current, at {}:{}; expected the library versions that lockstep-info prints",
        call, status, device, where.file_name(), where.line()));
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
    if (status == CUDNN_STATUS_NOT_SUPPORTED) return false;
    // cuDNN 9 returns the reason as a separate code: 3001 to 3999, where NOT_SUPPORTED is 3000.
    constexpr int family = 1000;
    if (CUDNN_STATUS_NOT_SUPPORTED >= family && status / family == CUDNN_STATUS_NOT_SUPPORTED / family) return false;
    fail(call, text, where);
}

Libraries& libraries_of(Device device) {
    // Never destroyed: at exit the driver may be unloaded first.
    struct Made {
        std::once_flag once;
        Libraries libraries;
    };
    static auto* mutex = new std::mutex;
    static auto* all = new std::map<Device, Made>;
    Made& made = [&]() -> Made& {
        const std::scoped_lock lock(*mutex);
        return (*all)[device];
    }();
    // Without the lock: creating them waits for this GPU, which may wait for another thread's work on another GPU.
    std::call_once(made.once, [&] {
        check(cudnnCreate(&made.libraries.dnn), "cudnnCreate");
        check(cublasLtCreate(&made.libraries.blas), "cublasLtCreate");
    });
    return made.libraries;
}

DeviceQuery::DeviceQuery(Device device) : scope_(backend().gpu_of(device)), libraries_(libraries_of(device)) {}

}  // namespace lockstep::cuda
