// Process groups for tests: on every backend whose ranks can be forked.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/parallel/comm/forked_ranks.h"
#include "lockstep/tests/parallel/file_fixture.h"

namespace lockstep::testing {

using lockstep::test::TemporaryDirectory;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Lines = std::vector<std::string>;

inline bool built_in(const std::string& name) {
    for (const ProcessGroupBackend& backend : process_group_backends())
        if (backend.name == name) return backend.built_in;
    return false;
}

/// What can be started by forking: mpi's ranks are started by mpirun.
inline Lines backends() {
    Lines names;
    for (const char* name : {"shm", "gloo"})
        if (built_in(name))
            names.emplace_back(name);
        else
            WARN("skipped: " << name << " was not built in");
    return names;
}

inline ProcessGroupOptions options_of(const std::string& backend, const TemporaryDirectory& place, int rank, int size,
                                      milliseconds timeout = no_limit) {
    return {.backend = backend,
            .rendezvous = {.init_method = "file://" + (place / "store").string(),
                           .rank = rank,
                           .world_size = size,
                           .time_limit = no_limit},
            .time_limit = timeout};
}

/// Runs `body` on `size` ranks; what they say, a line each.
inline std::string on_ranks(const std::string& backend, int size, const std::function<Lines(ProcessGroup&)>& body,
                            milliseconds timeout = no_limit) {
    const TemporaryDirectory place;
    ForkedRanks ranks(size, [&](int rank) {
        ProcessGroup group(options_of(backend, place, rank, size, timeout));
        return body(group);
    });
    return joined(ranks.finish());
}

/// Milliseconds, of one clock for all processes.
inline long long now() { return std::chrono::duration_cast<milliseconds>(Clock::now().time_since_epoch()).count(); }

}  // namespace lockstep::testing
