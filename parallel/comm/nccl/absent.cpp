// The nccl backend in builds without NCCL.
#include "lockstep/parallel/comm/group/transport.h"

namespace lockstep {

TransportBackend nccl_backend() {
    return {.name = "nccl",
            .build_hint =
                "it needs the CUDA backend and NCCL 2.18 or later (the CUDA toolkit's or libnccl-dev): "
                "install them and configure again"};
}

}  // namespace lockstep
