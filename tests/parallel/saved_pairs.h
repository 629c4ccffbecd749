// Checkpoints of a run as files, and what is loaded from them.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "lockstep/tests/catch.h"
#include "lockstep/tests/parallel/file_fixture.h"
#include "lockstep/tests/parallel/saved_training.h"

namespace saved_training {

/// The files of a checkpoint as they are after so many steps.
struct Saved {
    std::string weights, state;
    std::vector<float> values;
};
inline Saved saved_after(std::uint64_t steps, std::uint64_t seed = 3) {
    const ls::test::TemporaryDirectory directory;
    Training training(seed);
    training.to(steps);
    training.save(directory / "net");
    CHECK(directory.names() == std::set<std::string>{"net", "net.resume"});
    return {ls::test::get_bytes(directory / "net"), ls::test::get_bytes(directory / "net.resume"), training.weights()};
}

/// What is loaded from "net", and that it goes on with the right bits.
inline std::uint64_t steps_loaded(const ls::test::TemporaryDirectory& directory) {
    Training training(3);
    const auto run = training.load(directory / "net");
    REQUIRE(run);
    Training straight(3);
    straight.to(run->steps);
    CHECK((training.weights() == straight.weights()));
    training.step();
    straight.step();
    CHECK((training.weights() == straight.weights()));
    return run->steps;
}

}  // namespace saved_training
