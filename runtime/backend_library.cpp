#include <dlfcn.h>
#include <fmt/format.h>

#include "lockstep/runtime/internal/backend_library.h"

namespace lockstep {

namespace {

/// The directory of this library with a slash at its end, as the loader found it; empty if it has none.
std::string own_directory() {
    Dl_info info{};
    if (dladdr(reinterpret_cast<const void*>(&backend_entry), &info) == 0 || !info.dli_fname) return {};
    const std::string_view file = info.dli_fname;
    const std::size_t slash = file.rfind('/');
    return slash == std::string_view::npos ? std::string() : std::string(file.substr(0, slash + 1));
}

}  // namespace

std::string missing_driver_reason() { return dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) ? "" : "no CUDA driver"; }

void* backend_entry(std::string_view name, const char* entry, std::string& absence) {
    const std::string path = fmt::format("{}liblockstep_{}.so.{}", own_directory(), name, LOCKSTEP_SOVERSION);
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    void* const found = library ? dlsym(library, entry) : nullptr;
    if (!found) {
        const char* const error = dlerror();  // names the file
        absence = fmt::format("its library cannot be loaded ({}); install liblockstep-{}{}", error ? error : path, name,
                              LOCKSTEP_SOVERSION);
    }
    return found;
}

}  // namespace lockstep
