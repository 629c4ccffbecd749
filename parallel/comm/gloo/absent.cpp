// The gloo backend in builds without Gloo.
#include "lockstep/parallel/comm/group/optional_backends.h"

namespace lockstep {

void lockstep_gloo_backend(TransportBackend& backend) {
    backend.absence = "it was not built in; install libgloo-dev and configure again";
}

}  // namespace lockstep
