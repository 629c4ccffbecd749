// Ranks of DistributedDataParallel, forked; each says what it found wrong.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/parallel/process_group.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/parallel/comm/forked_ranks.h"
#include "lockstep/tests/parallel/file_fixture.h"
#include "lockstep/tests/runtime/gate.h"

namespace lockstep::testing {

/// Every rank has a device of its own.
inline const bool one_device = ::setenv("LOCKSTEP_CPU_DEVICES", "1", 1) == 0;

/// Throws where `found` is not what it should be.
inline void expect(bool good, const std::string& what) {
    if (!good) throw Error(what);
}

inline std::string on_ranks(int size, const std::function<void(ProcessGroup&)>& body,
                            std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
    const test::TemporaryDirectory place;
    ForkedRanks ranks(size, [&](int rank) {
        ProcessGroup group({.backend = "shm",
                            .rendezvous = {.init_method = "file://" + (place / "store").string(),
                                           .rank = rank,
                                           .world_size = size,
                                           .timeout = std::chrono::seconds(60)},
                            .timeout = timeout});
        body(group);
        return std::vector<std::string>();
    });
    return joined(ranks.finish(std::chrono::seconds(120)));
}

template <class E>
void expect_throws(const std::string& part, const std::function<void()>& call) {
    const std::string message = message_of<E>(call);
    expect(contains(message, part) && message.find('\n') == std::string::npos,
           fmt::format("'{}' does not say '{}'", message, part));
}

}  // namespace lockstep::testing
