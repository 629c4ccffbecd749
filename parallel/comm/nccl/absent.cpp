// The nccl backend of a build without NCCL.
#include "lockstep/parallel/comm/group/transport.h"

namespace lockstep {

TransportBackend nccl_backend() {
    return {.name = "nccl",
            .how_to_build =
                "it needs the CUDA backend and NCCL 2.18 or later (the CUDA toolkit's or libnccl-dev): "
                "install them and configure again"};
}

}  // namespace lockstep
