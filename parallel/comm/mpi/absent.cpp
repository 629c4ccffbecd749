// The mpi backend of a build without MPI.
#include "lockstep/parallel/comm/group/transport.h"

namespace lockstep {

TransportBackend mpi_backend() { return {.name = "mpi", .how_to_build = "install libopenmpi-dev and configure again"}; }

}  // namespace lockstep
