// Ranks that each have a GPU, of the CUDA stand-in or real: forked before anything looks at them.
#pragma once

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/tests/cuda_standin/training.h"
#include "lockstep/tests/parallel/comm/forked_ranks.h"
#include "lockstep/tests/parallel/file_fixture.h"
#include "lockstep/tests/runtime/gate.h"

namespace lockstep::testing {

/// Whether there are so many GPUs; says that the test case is skipped where there are fewer.
inline bool has_gpus(int count, const std::string& what) {
    if (test::gpu_count() >= count) return true;
    test::skipped(what + " wants " + std::to_string(count) + " GPUs, there is " + std::to_string(test::gpu_count()));
    return false;
}

/// Backends that so many ranks can use. mpirun starts its own.
inline std::vector<std::string> backends_here(int ranks) {
    std::vector<std::string> names;
    for (const ProcessGroupBackend& backend : process_group_backends())
        if (backend.built_in && backend.name != "mpi" && (backend.name != "nccl" || has_gpus(ranks, "nccl")))
            names.push_back(backend.name);
    return names;
}

/// The one GPU of those that this process sees that a rank of nccl's is to see.
inline std::string gpu_of_rank(int rank) {
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    if (visible == nullptr) return std::to_string(rank);
    std::string list(visible);
    for (int skip = 0; skip < rank; ++skip) list.erase(0, list.find(',') + 1);
    return list.substr(0, list.find(','));
}

/// How ranks are started: the GPUs that they see, as on one machine, and how long they wait for each other.
struct GpuRanks {
    std::string backend;
    int size = 2;
    bool share = false;  ///< the GPUs; nccl wants one per rank
    std::chrono::milliseconds timeout = no_limit;
};

/// `body` on the ranks, which returns what was wrong; to that comes what CUDA would refuse. A line each.
inline std::string on_gpus(const GpuRanks& start, const std::function<std::vector<std::string>(ProcessGroup&)>& body) {
    const test::TemporaryDirectory place;
    ForkedRanks ranks(start.size, [&](int rank) {
        if (start.backend == "nccl" && !start.share) ::setenv("CUDA_VISIBLE_DEVICES", gpu_of_rank(rank).c_str(), 1);
        ProcessGroup group({.backend = start.backend,
                            .rendezvous = {.init_method = "file://" + (place / "store").string(),
                                           .rank = rank,
                                           .world_size = start.size,
                                           .time_limit = no_limit},
                            .time_limit = start.timeout});
        std::vector<std::string> lines = body(group);
        test::set_delays(0, 0);
        for (const std::string& mistake : test::take_mistakes()) lines.push_back(mistake);
        return lines;
    });
    return joined(ranks.finish());
}
inline std::string on_gpus(const std::string& backend, int size,
                           const std::function<std::vector<std::string>(ProcessGroup&)>& body) {
    return on_gpus({.backend = backend, .size = size}, body);
}

}  // namespace lockstep::testing
