#include <dlfcn.h>
#include <fmt/format.h>

#include <string>
#include <string_view>

#include "lockstep/runtime/internal/backend_library.h"
#include "lockstep/runtime/log.h"

namespace lockstep {

namespace {

/// The library of a backend: in the directory of the core library, with the same ending of its name.
struct LibraryFile {
    std::string path;
    std::string version;  ///< "0.1"
};

LibraryFile file_of(std::string_view backend) {
    constexpr std::string_view own_name = "lockstep_core", before_version = ".so.";
    Dl_info info{};
    const bool known = dladdr(reinterpret_cast<const void*>(&backend_entry), &info) != 0 && info.dli_fname;
    std::string path = known ? info.dli_fname : "";
    const std::size_t name = path.rfind(own_name);
    if (name == std::string::npos) return {fmt::format("liblockstep_{}.so", backend), ""};
    path.replace(name, own_name.size(), fmt::format("lockstep_{}", backend));
    const std::size_t version = path.rfind(before_version);
    return {path, version == std::string::npos ? "" : path.substr(version + before_version.size())};
}

}  // namespace

std::string missing_driver_reason() { return dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) ? "" : "no CUDA driver"; }

void* backend_entry(std::string_view name, const char* entry, std::string& absence) {
    const LibraryFile file = file_of(name);
    void* const library = dlopen(file.path.c_str(), RTLD_NOW | RTLD_LOCAL);
    void* const found = library ? dlsym(library, entry) : nullptr;
    if (!found) {
        const char* const error = dlerror();  // names the file
        absence = fmt::format("its library cannot be loaded ({}); install liblockstep-{}{}", error ? error : file.path,
                              name, file.version);
    }
    log_message(LogLevel::debug, [&] {
        return found ? fmt::format("backend {}: loaded {}", name, file.path)
                     : fmt::format("backend {}: {}", name, absence);
    });
    return found;
}

}  // namespace lockstep
