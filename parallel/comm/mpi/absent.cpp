// The mpi backend in builds without MPI.
#include "lockstep/parallel/comm/group/transport.h"

namespace lockstep {

TransportBackend mpi_backend() { return {.name = "mpi", .build_hint = "install libopenmpi-dev and configure again"}; }

}  // namespace lockstep
