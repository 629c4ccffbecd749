// A build without the CUDA toolkit.
#include "lockstep/runtime/internal/backend.h"

namespace lockstep {

Backend* lockstep_cuda_backend(std::string& absence) {
    absence = "built without the CUDA toolkit";
    return nullptr;
}

}  // namespace lockstep
