// The nccl backend of shared builds, which is in a separate library. The library is not loaded without a GPU.
#include "lockstep/parallel/comm/group/optional_backends.h"
#include "lockstep/runtime/device.h"

namespace lockstep {

void lockstep_nccl_backend(TransportBackend& backend) {
    if (cuda_absence_reason().empty()) {
        load_backend(backend, "lockstep_nccl_backend");
        return;
    }
    backend.make = hosts_backend().make;
    backend.unusable = no_gpu_reason;
}

}  // namespace lockstep
