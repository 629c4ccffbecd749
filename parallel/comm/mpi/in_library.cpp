// The mpi backend of shared builds, which is in a separate library.
#include "lockstep/parallel/comm/group/optional_backends.h"

namespace lockstep {

void lockstep_mpi_backend(TransportBackend& backend) { load_backend(backend, "lockstep_mpi_backend"); }

}  // namespace lockstep
