// One operation between ranks or devices, timed and checked, for bench/collectives.
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
    std::size_t bytes = 0;  ///< as in nccl-tests: of the whole buffer, sent or received
    std::string dtype;
    int ranks = 0;
    double microseconds = 0;  ///< per call, mean over iterations, on the slowest rank
    double algorithm_gbs = 0, bus_gbs = 0;
    std::int64_t wrong = 0;  ///< number of elements on all ranks that are not exactly as expected
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

/// "all_reduce", ...: the operations of `run_collectives`, in its order.
std::vector<std::string> operations();

/// Messages have a sender and a receiver.
inline int min_ranks(const std::string& operation) { return operation == "send_receive" ? 2 : 1; }

/// Collective. Every rank measures on host memory, or on the GPU selected by its `local_rank` if the backend supports
/// GPU memory. Calls `sink` on rank 0. Omits operations that need more ranks.
void run_collectives(lockstep::Communicator& ranks, int local_rank, const Plan& plan, const Sink& sink);

/// All-reduce between virtual devices of this process as in DataParallel: sums along the tree of shards, one per
/// device, bucket by bucket. Either on device 0, from which the others copy ("root"), or on each device for its slice
/// ("slices").
void run_in_process(int devices, const Plan& plan, const Sink& sink);

/// Small numbers, whose sums are exact in every dtype for hundreds of ranks.
inline int value_of(int rank, std::size_t element) {
    return static_cast<int>((element * 7 + static_cast<std::size_t>(rank) * 3) % 11) - 5;
}

/// Fills in the rates. `steps`: how often the busiest link carries the buffer, nccl-tests' factor.
Row finished(Row row, double seconds, double steps);

}  // namespace collectives
