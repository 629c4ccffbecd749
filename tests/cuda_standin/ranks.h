// Ranks with one GPU each, of the CUDA stand-in or real, forked before any code uses CUDA.
#pragma once

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/tests/cuda_standin/training.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/processes.h"
#include "lockstep/tests/fixtures/waiting.h"

namespace lockstep::test {

/// Whether there are `count` GPUs. If not, prints that the test case is skipped.
inline bool has_gpus(int count, const std::string& what) {
    if (test::gpu_count() >= count) return true;
    test::skipped(what + " wants " + std::to_string(count) + " GPUs, there is " + std::to_string(test::gpu_count()));
    return false;
}

/// Backends that `ranks` ranks can use, except mpi, whose ranks mpirun starts.
inline std::vector<std::string> backends_here(int ranks) {
    std::vector<std::string> names;
    for (const ProcessGroupBackend& backend : process_group_backends())
        if (backend.present && backend.name != "mpi" && (backend.name != "nccl" || has_gpus(ranks, "nccl")))
            names.push_back(backend.name);
    return names;
}

/// The visible GPU that a rank of nccl uses.
inline std::string gpu_of_rank(int rank) {
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    if (visible == nullptr) return std::to_string(rank);
    std::string list(visible);
    for (int skip = 0; skip < rank; ++skip) list.erase(0, list.find(',') + 1);
    return list.substr(0, list.find(','));
}

/// How ranks are started.
struct GpuRanks {
    std::string backend;
    int size = 2;
    bool share = false;  ///< whether ranks share GPUs; nccl needs one per rank
    std::chrono::milliseconds timeout = no_limit;
};

/// Runs `body` on the ranks. Returns their failures and the calls that CUDA would reject, one per line.
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

}  // namespace lockstep::test
