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
    std::uint64_t layout = 0;  ///< digest_of the parts' sizes: differs if the parts of the ranks differ
    bool uneven = false;       ///< ranks may give different numbers of bytes
    bool on_gpu = false;       ///< made by a communicator for GPUs
    bool hears_all = false;    ///< no rank completes it before every rank has begun it
};

/// Whether LOCKSTEP_DEBUG requests it. Throws InvalidArgument for unknown values.
bool compares_calls();

/// Collective over `host`. Throws TransportError, on all ranks, if one makes another call than rank 0.
void compare_calls(Transport& host, int rank, int size, const CollectiveCall& call, Deadline deadline);
/// For parts that differ between ranks: each rank compares expected and sent sizes, and all ranks get the result.
void compare_parts(Transport& host, int rank, std::span<const std::size_t> sent, std::span<const std::size_t> received,
                   Deadline deadline);

}  // namespace lockstep
