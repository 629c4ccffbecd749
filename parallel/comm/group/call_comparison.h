// Comparison of the ranks' calls before a collective (LOCKSTEP_DEBUG=detail). Ranks whose calls differ get an error
// that describes the other calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "lockstep/parallel/comm/group/transport.h"

namespace lockstep {

struct CollectiveCall {
    std::string_view name;
    std::uint64_t bytes = 0;  ///< size of this rank's data
    int root = -1;
    int dtype = -1, op = -1;
    std::uint64_t layout = 0;  ///< differs where the parts of the ranks differ
    bool uneven = false;       ///< ranks may give different numbers of bytes
    bool on_gpu = false;       ///< by a communicator for GPUs
    bool hears_all = false;    ///< it is not done here before every rank has begun it
};

/// For CollectiveCall::layout.
std::uint64_t layout_of(std::span<const std::size_t> parts);

/// Whether LOCKSTEP_DEBUG asks for it. Throws InvalidArgument for what it does not know.
bool compares_calls();

/// Collective, by `host`. Throws TransportError, on all ranks, where one calls something else than rank 0.
void compare_calls(Transport& host, int rank, int size, const CollectiveCall& call, Deadline deadline);
/// For parts that differ between ranks: each rank compares expected and sent sizes, and all ranks get the result.
void compare_parts(Transport& host, int rank, std::span<const std::size_t> sent, std::span<const std::size_t> received,
                   Deadline deadline);

}  // namespace lockstep
