#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <fmt/format.h>

#include "lockstep/runtime/cuda/check.h"
#include "lockstep/runtime/internal/backend.h"

namespace lockstep {

namespace {

/// "13.0" from 13000, the version numbers of the CUDA runtime and driver.
std::string cuda_version(int number) {
    return number == 0 ? "none" : fmt::format("{}.{}", number / 1000, number % 1000 / 10);
}

/// "9.5.1" from 90501 and "8.9.7" from 8907: cuDNN changed its format with version 9; cuBLAS uses that of cuDNN 9.
std::string library_version(std::size_t number) {
    const std::size_t unit = number >= 90000 ? 10000 : 1000;
    return fmt::format("{}.{}.{}", number / unit, number % unit / 100, number % 100);
}

}  // namespace

void lockstep_cuda_versions(LibraryVersions& versions) {
    int runtime = 0, driver = 0;
    cuda::check_quietly(cudaRuntimeGetVersion(&runtime));
    cuda::check_quietly(cudaDriverGetVersion(&driver));
    versions.emplace_back("cuda_runtime", cuda_version(runtime));
    versions.emplace_back("cuda_driver", cuda_version(driver));
    versions.emplace_back("cudnn", library_version(cudnnGetVersion()));
    versions.emplace_back("cublasLt", library_version(cublasLtGetVersion()));
}

}  // namespace lockstep
