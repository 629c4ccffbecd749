// One operation between ranks or devices, timed and checked: what bench/collectives prints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/group/communicator.h"

namespace collectives {

struct Row {
    std::string where;  ///< "shm", "in-process"
    std::string operation;
    std::size_t bytes = 0;  ///< as nccl-tests count them: of the whole buffer, sent or received
    std::string dtype;
    int ranks = 0;
    double microseconds = 0;  ///< a call takes, mean over iterations, on the rank that needs longest
    double algorithm_gbs = 0, bus_gbs = 0;
    std::int64_t wrong = 0;  ///< elements that are not exactly what they should be, on all ranks
};

struct Plan {
    std::vector<std::string> operations;
    std::size_t begin = 1024, end = std::size_t{16} << 20;
    double factor = 4;
    int iterations = 20, warmup = 5;
    lockstep::DType dtype = lockstep::DType::f32;
    std::vector<std::size_t> sizes() const;  ///< in bytes, whole elements
};

using Sink = std::function<void(const Row&)>;

/// "all_reduce", ...: what `run_collectives` knows, in its order.
std::vector<std::string> operations();

/// Messages have a sender and a receiver.
inline int least_ranks(const std::string& operation) { return operation == "send_receive" ? 2 : 1; }

/// Collective. Every rank measures, on memory of the host, or of the GPU that its `local_rank` says where the backend
/// moves that; `sink` is called on rank 0. Leaves out what needs more ranks than there are.
void run_collectives(lockstep::Communicator& ranks, int local_rank, const Plan& plan, const Sink& sink);

/// All-reduce between virtual devices of this process as DataParallel makes it: sums along the tree of shards, one a
/// device, bucket by bucket; on device 0, which the others copy it from ("root"), or each device its slice ("slices").
void run_in_process(int devices, const Plan& plan, const Sink& sink);

/// Sums of these stay exact in every dtype for hundreds of ranks.
inline int value_of(int rank, std::size_t element) {
    return static_cast<int>((element * 7 + static_cast<std::size_t>(rank) * 3) % 11) - 5;
}

/// Fills in rates. `steps`: how often the busiest link carries the buffer, nccl-tests' factor.
Row finished(Row row, double seconds, double steps);

}  // namespace collectives
