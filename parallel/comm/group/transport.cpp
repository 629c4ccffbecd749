#include "lockstep/parallel/comm/group/transport.h"

#include <array>

namespace lockstep {

std::span<const TransportBackend> transport_backends() {
    static const std::array backends{hosts_backend(), gloo_backend(), nccl_backend(), mpi_backend()};
    return backends;
}

}  // namespace lockstep
