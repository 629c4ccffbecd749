// Backends whose library a build or a machine may lack. Each is loaded once, when a program first needs it.
#pragma once

#include "lockstep/parallel/comm/group/transport.h"

namespace lockstep {

extern "C" {
// One function per backend in its folder: that of the backend itself, one that says that it was not built in, or, in
// shared builds, one that loads the library with the backend. They set `make` or `absence`.
void lockstep_gloo_backend(TransportBackend& backend);
void lockstep_mpi_backend(TransportBackend& backend);
void lockstep_nccl_backend(TransportBackend& backend);
}

/// Calls the function of the same name in liblockstep_<backend.name>. Defined in shared builds only.
void load_backend(TransportBackend& backend, const char* entry);

}  // namespace lockstep
