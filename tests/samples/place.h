// A directory with digits, in which mnist and other programs run.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/samples/run_program.h"

namespace lockstep::test {

/// A directory with a small dataset in which programs are run.
struct Place {
    TemporaryDirectory directory;
    Place() {
        const ProgramRun drawn = run("make-digits --data digits --train 404 --test 60 --seed 3");
        REQUIRE(drawn.status == 0);
    }
    /// Runs `line`, which begins with a program's name, preceded by `before`.
    ProgramRun run(const std::string& line, const std::string& before = "") const {
        return run_program(directory, line, before);
    }
    ProgramRun mnist(const std::string& flags, const std::string& before = "") const {
        return run("mnist --data digits --net small " + flags, before);
    }
    nlohmann::json figures(const std::string& name) const { return nlohmann::json::parse(get_bytes(directory / name)); }
};

}  // namespace lockstep::test
