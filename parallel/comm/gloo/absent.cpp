// The gloo backend in builds without Gloo.
#include "lockstep/parallel/comm/group/transport.h"

namespace lockstep {

TransportBackend gloo_backend() { return {.name = "gloo", .build_hint = "install libgloo-dev and configure again"}; }

}  // namespace lockstep
