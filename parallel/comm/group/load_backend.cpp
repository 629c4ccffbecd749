#include <fmt/format.h>

#include "lockstep/parallel/comm/group/optional_backends.h"
#include "lockstep/runtime/internal/backend_library.h"

namespace lockstep {

void load_backend(TransportBackend& backend, const char* entry) {
    std::string absence;
    if (void* const fill = backend_entry(backend.name, entry, absence))
        reinterpret_cast<void (*)(TransportBackend&)>(fill)(backend);
    else
        backend.absence = std::move(absence);
}

}  // namespace lockstep
