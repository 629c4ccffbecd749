// The mpi backend in builds without MPI.
#include "lockstep/parallel/comm/group/optional_backends.h"

namespace lockstep {

void lockstep_mpi_backend(TransportBackend& backend) {
    backend.absence = "it was not built in; install libopenmpi-dev and configure again";
}

}  // namespace lockstep
