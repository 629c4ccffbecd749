// The gloo backend of a build without Gloo.
#include "lockstep/parallel/comm/group/transport.h"

namespace lockstep {

TransportBackend gloo_backend() { return {.name = "gloo", .how_to_build = "install libgloo-dev and configure again"}; }

}  // namespace lockstep
