// The versions reported by a build without the CUDA toolkit.
#include "lockstep/runtime/internal/backend.h"

namespace lockstep {

std::vector<std::pair<std::string, std::string>> cuda_library_versions() { return {}; }

}  // namespace lockstep
