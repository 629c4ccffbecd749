// Ranks of DistributedDataParallel, forked; each says what it found wrong.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <source_location>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/parallel/comm/forked_ranks.h"
#include "lockstep/tests/parallel/file_fixture.h"
#include "lockstep/tests/place.h"
#include "lockstep/tests/runtime/gate.h"

namespace lockstep::testing {

/// CHECK for ranks: throws with the place of the call unless it is `good`.
inline void expect(bool good, const std::string& what, std::source_location where = std::source_location::current()) {
    if (!good) throw Error(test::place_of(where) + what);
}

/// `per_host`: how many ranks share a host; 0: all.
inline std::string on_ranks(int size, const std::function<void(ProcessGroup&)>& body,
                            std::chrono::milliseconds timeout = no_limit, int per_host = 0) {
    const test::TemporaryDirectory place;
    ForkedRanks ranks(size, [&](int rank) {
        ::setenv("LOCKSTEP_CPU_DEVICES", "1", 1);  // each rank has its own device
        if (per_host > 0) ::setenv("LOCKSTEP_HOST_ID", std::to_string(rank / per_host).c_str(), 1);
        ProcessGroup group({.backend = "shm",
                            .rendezvous = {.init_method = "file://" + (place / "store").string(),
                                           .rank = rank,
                                           .world_size = size,
                                           .time_limit = no_limit},
                            .time_limit = timeout});
        body(group);
        return std::vector<std::string>();
    });
    return joined(ranks.finish());
}

template <class E>
void expect_throws(const std::string& part, const std::function<void()>& call,
                   std::source_location where = std::source_location::current()) {
    const std::string message = message_of<E>(call);
    expect(contains(message, part) && message.find('\n') == std::string::npos,
           fmt::format("'{}' does not say '{}'", message, part), where);
}

}  // namespace lockstep::testing
