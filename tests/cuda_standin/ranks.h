// Ranks that each have devices of the CUDA stand-in: forked before anything looks at them.
#pragma once

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/parallel/process_group.h"
#include "lockstep/tests/cuda_standin/training.h"
#include "lockstep/tests/parallel/comm/forked_ranks.h"
#include "lockstep/tests/parallel/file_fixture.h"
#include "lockstep/tests/runtime/gate.h"

namespace lockstep::testing {

/// mpirun starts its own.
inline std::vector<std::string> backends_here() {
    std::vector<std::string> names;
    for (const ProcessGroupBackend& backend : process_group_backends())
        if (backend.built_in && backend.name != "mpi") names.push_back(backend.name);
    return names;
}

/// How ranks are started: the GPUs that they see, as on one machine, and how long they wait for each other.
struct GpuRanks {
    std::string backend;
    int size = 2;
    bool share = false;  ///< the GPUs; nccl wants one a rank
    std::chrono::milliseconds timeout = std::chrono::seconds(60);
    std::chrono::milliseconds limit = std::chrono::seconds(200);  ///< who has not ended then hangs
};

/// `body` on the ranks, which returns what was wrong; to that comes what CUDA would refuse. A line each.
inline std::string on_gpus(const GpuRanks& start, const std::function<std::vector<std::string>(ProcessGroup&)>& body) {
    const test::TemporaryDirectory place;
    ForkedRanks ranks(start.size, [&](int rank) {
        if (start.backend == "nccl" && !start.share) ::setenv("CUDA_VISIBLE_DEVICES", std::to_string(rank).c_str(), 1);
        ProcessGroup group({.backend = start.backend,
                            .rendezvous = {.init_method = "file://" + (place / "store").string(),
                                           .rank = rank,
                                           .world_size = start.size,
                                           .timeout = std::chrono::seconds(60)},
                            .timeout = start.timeout});
        std::vector<std::string> lines = body(group);
        standin::set_delays(0, 0);
        for (const standin::Mistake& mistake : standin::take_mistakes())
            lines.push_back(std::string(standin::name_of(mistake.kind)) + ": " + mistake.message);
        return lines;
    });
    return joined(ranks.finish(start.limit));
}
inline std::string on_gpus(const std::string& backend, int size,
                           const std::function<std::vector<std::string>(ProcessGroup&)>& body) {
    return on_gpus({.backend = backend, .size = size}, body);
}

}  // namespace lockstep::testing
