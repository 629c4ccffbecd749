#include "lockstep/parallel/comm/group/optional_backends.h"

#include "lockstep/runtime/internal/backend_library.h"

namespace lockstep {

namespace {

TransportBackend found(std::string_view name, void (*fill)(TransportBackend&)) {
    TransportBackend backend{.name = name, .absence = excluded_backend_reason(name)};
    if (backend.absence.empty()) fill(backend);
    return backend;
}

}  // namespace

const TransportBackend& gloo_backend() {
    static const TransportBackend backend = found("gloo", lockstep_gloo_backend);
    return backend;
}

const TransportBackend& mpi_backend() {
    static const TransportBackend backend = found("mpi", lockstep_mpi_backend);
    return backend;
}

const TransportBackend& nccl_backend() {
    static const TransportBackend backend = found("nccl", lockstep_nccl_backend);
    return backend;
}

}  // namespace lockstep
