// The programs of the tutorial, and the table of the backends' operations.
#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/samples/run_program.h"

using namespace lockstep::test;
using nlohmann::json;
using Lines = std::vector<std::string>;

namespace {

/// Ranks print in any order.
Lines sorted_lines(const std::string& text) {
    Lines lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    std::sort(lines.begin(), lines.end());
    return lines;
}

}  // namespace

TEST_CASE("the tutorial's programs print the documented output") {
    const TemporaryDirectory place;
    struct Program {
        const char* name;
        Lines lines;
    };
    const std::vector<Program> programs{
        {"blocking", {"Rank 0 has data 1.0", "Rank 1 has data 1.0"}},
        {"non-blocking",
         {"Rank 0 has data 1.0", "Rank 0 started sending", "Rank 1 has data 1.0", "Rank 1 started receiving"}},
        {"all-reduce", {"Rank 0 has data 3.0", "Rank 1 has data 3.0", "Rank 2 has data 3.0"}},
        {"reduce", {"Rank 0 has the maximum 2.0"}},
        {"broadcast", {"Rank 0 has data [1.0, 1.0]", "Rank 1 has data [1.0, 1.0]", "Rank 2 has data [1.0, 1.0]"}},
        {"scatter", {"Rank 0 has data [0.0]", "Rank 1 has data [1.0]", "Rank 2 has data [2.0]"}},
        {"gather", {"Rank 0 has data [0.0]", "Rank 0 has data [1.0]", "Rank 0 has data [2.0]"}},
        {"all-gather",
         {"Rank 0 has data [0.0, 1.0, 2.0]", "Rank 1 has data [0.0, 1.0, 2.0]", "Rank 2 has data [0.0, 1.0, 2.0]"}},
        {"reduce-scatter", {"Rank 0 has data [0.0]", "Rank 1 has data [3.0]", "Rank 2 has data [6.0]"}},
        {"all-to-all",
         {"Rank 0 has data [0.0, 10.0, 20.0]", "Rank 1 has data [1.0, 11.0, 21.0]",
          "Rank 2 has data [2.0, 12.0, 22.0]"}},
        {"barrier",
         {"Rank 0 has passed the barrier", "Rank 1 has passed the barrier", "Rank 2 has passed the barrier"}},
        {"ring",
         {"Rank 0 has data [6.0, 6.0, 6.0, 6.0]", "Rank 1 has data [6.0, 6.0, 6.0, 6.0]",
          "Rank 2 has data [6.0, 6.0, 6.0, 6.0]"}},
    };
    std::size_t lines = programs.size();  // one heading for each program
    for (const Program& program : programs) {
        const ProgramRun run = run_program(place, std::string("collectives --processes 3 --program ") + program.name);
        INFO(program.name);
        CHECK(run.status == 0);
        CHECK(run.err.empty());
        CHECK(sorted_lines(run.out) == program.lines);
        lines += program.lines.size();
    }
    const ProgramRun all = run_program(place, "collectives --processes 3");
    CHECK(all.status == 0);
    CHECK(sorted_lines(all.out).size() == lines);
    CHECK(run_program(place, "collectives --processes 1").status == 0);
    const ProgramRun launched = run_program(
        place, "lockstep-run --nproc-per-node 2 " + shell_word(PROGRAMS "/collectives") + " --program ring");
    CHECK(sorted_lines(launched.out) ==
          Lines{"Rank 0 has data [3.0, 3.0, 3.0, 3.0]", "Rank 1 has data [3.0, 3.0, 3.0, 3.0]"});

    for (const char* flags : {"--program waltz", "--processes 0", "--epochs -1", "--backend mpi", "stray"}) {
        const ProgramRun run = run_program(place, std::string("collectives ") + flags);
        CAPTURE(flags);
        CHECK(run.status == 2);
        CHECK(run.lines_of_err() == 1);
    }
    const ProgramRun few = run_program(place, "collectives --processes 1 --program blocking");
    CHECK(few.status == 2);
    CHECK(few.err == "collectives: --program blocking: too few ranks (1); expected 2 or more\n");
    CHECK(run_program(place, "collectives --rank 2 --world-size 2").status == 2);
}

TEST_CASE("with gradients averaged by hand, the ranks' losses fall") {
    const TemporaryDirectory place;
    REQUIRE(run_program(place, "make-digits --data digits --train 1280 --test 10").status == 0);
    const ProgramRun run = run_program(place, "collectives --program train --data digits --processes 2 --epochs 8");
    CHECK(run.err.empty());
    REQUIRE(run.status == 0);
    const Lines lines = sorted_lines(run.out);
    REQUIRE(lines.size() == 16);
    for (std::size_t i = 0; i < lines.size(); ++i) {
        const std::string begin = "Rank " + std::to_string(i / 8) + ", epoch " + std::to_string(i % 8) + ": ";
        REQUIRE(lines[i].rfind(begin, 0) == 0);
        const double loss = std::stod(lines[i].substr(begin.size()));
        const double first = std::stod(lines[i / 8 * 8].substr(begin.size()));
        CHECK(loss > 0);
        if (i % 8 == 7) CHECK(loss < first);
    }
    const ProgramRun nowhere = run_program(place, "collectives --program train --data nowhere --processes 2");
    CHECK(nowhere.status == 1);
    CHECK_THAT(nowhere.err, contains("nowhere"));
}

TEST_CASE("lockstep-info shows what each backend supports") {
    ::setenv("LSAN_OPTIONS", "detect_leaks=0", 1);  // Open MPI's
    const TemporaryDirectory place;
    const ProgramRun text = run_program(place, "lockstep-info --collectives");
    CHECK(text.status == 0);
    CHECK_THAT(text.err, !contains("lockstep-info:"));  // MPI may print warnings about the network
    for (const char* part : {"shm", "host", "cpu", "cuda", "all_reduce", "monitored_barrier"})
        CHECK_THAT(text.out, contains(part));
    const ProgramRun run = run_program(place, "lockstep-info --collectives --json");
    REQUIRE(run.status == 0);
    const json shm = json::parse(run.out)["collectives"]["shm"];
    const json info = json::parse(run_program(place, "lockstep-info --json").out);
    const bool gpu = info["cuda_absence_reason"].get<std::string>().empty();
    CHECK(shm["host"].size() == 13);
    for (const char* device : {"host", "cpu"})
        for (const json& answer : shm[device]) CHECK(answer == "yes");
    for (const auto& [operation, answer] : shm["cuda"].items()) {
        const bool moves_nothing = operation == "barrier" || operation == "monitored_barrier";
        CHECK(answer == (!gpu ? "no GPU" : moves_nothing ? "yes" : "no"));
    }
}
