// The versions reported by a build without the CUDA toolkit.
#include "lockstep/runtime/internal/backend.h"

namespace lockstep {

void lockstep_cuda_versions(LibraryVersions& /*versions*/) {}

}  // namespace lockstep
