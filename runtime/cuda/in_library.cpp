// The CUDA backend of shared builds, which is in a separate library. The library is not loaded without a driver.
#include "lockstep/runtime/internal/backend.h"
#include "lockstep/runtime/internal/backend_library.h"
#include "lockstep/runtime/internal/kernels.h"

namespace lockstep {

namespace {

template <class Function>
Function* entry(const char* name, std::string& absence) {
    return reinterpret_cast<Function*>(backend_entry("cuda", name, absence));
}

}  // namespace

Backend* lockstep_cuda_backend(std::string& absence) {
    absence = missing_driver_reason();
    if (!absence.empty()) return nullptr;
    auto* const make = entry<decltype(lockstep_cuda_backend)>("lockstep_cuda_backend", absence);
    return make ? make(absence) : nullptr;
}

void lockstep_cuda_versions(LibraryVersions& versions) {
    std::string absence;
    if (auto* const add = entry<decltype(lockstep_cuda_versions)>("lockstep_cuda_versions", absence)) add(versions);
}

void lockstep_cuda_kernels(KernelTable& table) {
    std::string absence;
    if (auto* const add = entry<decltype(lockstep_cuda_kernels)>("lockstep_cuda_kernels", absence)) add(table);
}

}  // namespace lockstep
