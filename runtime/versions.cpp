#include "lockstep/runtime/versions.h"

#include <dnnl.h>
#include <fmt/format.h>
#include <zlib.h>

#include "lockstep/runtime/internal/backend.h"
#include "lockstep/runtime/internal/backend_library.h"

namespace lockstep {

std::vector<std::pair<std::string, std::string>> library_versions() {
    const dnnl_version_t* onednn = dnnl_version();
    LibraryVersions versions = {
        {"lockstep", LOCKSTEP_VERSION},
        {"compiler",
#if defined(__clang__)
         fmt::format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__)},
#else
         fmt::format("g++ {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__)},
#endif
        {"fmt", fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100)},
        {"oneDNN", fmt::format("{}.{}.{}", onednn->major, onednn->minor, onednn->patch)},
        {"zlib", zlibVersion()},
    };
    if (excluded_backend_reason("cuda").empty()) lockstep_cuda_versions(versions);
    return versions;
}

}  // namespace lockstep
