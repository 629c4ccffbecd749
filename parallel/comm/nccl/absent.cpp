// The nccl backend in builds without NCCL.
#include "lockstep/parallel/comm/group/optional_backends.h"

namespace lockstep {

void lockstep_nccl_backend(TransportBackend& backend) {
    backend.absence =
        "it was not built in; it needs the CUDA backend and NCCL 2.18 or later (the CUDA toolkit's or libnccl-dev): "
        "install them and configure again";
}

}  // namespace lockstep
