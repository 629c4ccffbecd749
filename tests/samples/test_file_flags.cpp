// Flags that name files: conflicts that would destroy a file, and files that could not be written at the end, are
// reported before training.
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/processes.h"
#include "lockstep/tests/fixtures/waiting.h"
#include "lockstep/tests/samples/run_program.h"

using namespace lockstep::test;
using nlohmann::json;

namespace {

ProgramRun linear(const TemporaryDirectory& place, const std::string& flags, const std::string& before = "") {
    return run_program(place, "linear --devices cpu:0 --quiet " + flags, before);
}

std::vector<json> lines_of(const std::filesystem::path& log) {
    std::vector<json> lines;
    std::istringstream text(get_bytes(log));
    for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
    return lines;
}

}  // namespace

TEST_CASE("two flags for one file, in any spelling, are wrong usage and harm nothing") {
    const TemporaryDirectory place;
    REQUIRE(linear(place, "--steps 1 --save net").status == 0);
    std::filesystem::create_directory(place / "sub");
    std::filesystem::create_symlink("net", place / "link");
    std::filesystem::create_symlink("made-later", place / "dangling");
    std::filesystem::create_hard_link(place / "net", place / "twin");
    std::filesystem::create_hard_link(place / "net.resume", place / "twin-state");
    const std::string weights = get_bytes(place / "net"), state = get_bytes(place / "net.resume");
    for (const char* flags : {"--save net --json net",           "--save net --json ./sub/../net",
                              "--save net --json link",          "--save link --json net",
                              "--save net --json twin",          "--save new --json new",
                              "--save new --json sub/../new",    "--save dangling --json made-later",
                              "--save net --json net.resume",    "--save new --json new.resume",
                              "--save net --json twin-state",    "--load net --json net",
                              "--load net --json link",          "--load net --json net.resume",
                              "--load net.resume --save net",    "--load net --save net.resume",
                              "--save linear.jsonl --log-dir .", "--load linear.jsonl --log-dir .",
                              "--json linear.jsonl --log-dir .", "--json log/linear.jsonl --log-dir ./sub/../log",
                              "--save net --trace link",         "--json new --trace new"}) {
        CAPTURE(flags);
        const ProgramRun run = linear(place, std::string("--steps 2 ") + flags);
        CAPTURE(run.err);
        CHECK(run.status == 2);
        CHECK(run.out.empty());
        CHECK(run.lines_of_err() == 1);
        CHECK_THAT(run.err, contains("expected a different file for each"));
    }
    CHECK(get_bytes(place / "net") == weights);
    CHECK(get_bytes(place / "net.resume") == state);
    // Saving to the loaded file resumes in place.
    CHECK(linear(place, "--steps 3 --load net --save net --json figures --log-dir log").status == 0);
    CHECK(linear(place, "--steps 4 --load net --save ./sub/../net").status == 0);
}

TEST_CASE("an unwritable path is reported before training") {
    const TemporaryDirectory place;
    std::filesystem::create_directories(place / "one.resume");
    std::filesystem::create_directories(place / "two.resume.next");
    std::filesystem::create_directories(place / "three");
    REQUIRE(::mkfifo((place / "four.resume").c_str(), 0600) == 0);
    std::filesystem::create_directory(place / "log");
    REQUIRE(::mkfifo((place / "log/linear.jsonl").c_str(), 0600) == 0);
    std::filesystem::create_directories(place / "folder/linear.jsonl");
    // This many epochs would take hours.
    for (const char* flags :
         {"--save one", "--save two", "--save three", "--save four", "--log-dir log", "--log-dir folder",
          "--json three", "--save no/where", "--json no/where", "--trace three", "--trace no/where"}) {
        CAPTURE(flags);
        const ProgramRun run = linear(place, std::string("--epochs 100000000 ") + flags, "timeout 300");
        CAPTURE(run.err);
        CHECK(run.status == 1);
        CHECK(run.lines_of_err() == 1);
        CHECK(run.err.rfind("linear: ", 0) == 0);
    }
    for (const char* name : {"one", "two", "four", "no"}) CHECK_FALSE(std::filesystem::exists(place / name));
}

TEST_CASE("a second program that would save to the same file fails before it trains") {
    const TemporaryDirectory place;
    const std::string net = (place / "net").string();
    StartedProcess first(
        {std::string(PROGRAMS) + "/linear", "--quiet", "--devices", "cpu:0", "--epochs", "100000000", "--save", net});
    REQUIRE(comes_true([&] { return get_bytes(net + ".lock").find('\n') != std::string::npos; }));
    std::filesystem::create_symlink("net", place / "link");
    for (const char* name : {"net", "link"}) {
        const ProgramRun second = linear(place, std::string("--epochs 100000000 --save ") + name, "timeout 300");
        CHECK(second.status == 1);
        CHECK(second.lines_of_err() == 1);
        CHECK_THAT(second.err, contains("process " + std::to_string(first.process())) && contains("is saving to it"));
    }
    CHECK(linear(place, "--steps 1 --save other").status == 0);
    first.send(SIGKILL);
    CHECK(first.status() == 128 + SIGKILL);
    CHECK(linear(place, "--steps 1 --save net").status == 0);
    CHECK_FALSE(std::filesystem::exists(net + ".lock"));
}

TEST_CASE("a resumed run keeps the lines of its log, and prints its first step") {
    const TemporaryDirectory place;
    const auto log = place / "log/linear.jsonl";
    REQUIRE(linear(place, "--steps 5 --save net --log-dir log").status == 0);
    const std::string before = get_bytes(log);
    REQUIRE(linear(place, "--steps 8 --load net --log-dir log").status == 0);
    CHECK(get_bytes(log).starts_with(before));
    const std::vector<json> lines = lines_of(log);
    REQUIRE(lines.size() == 10);  // a head and 5 steps, a head and 3
    CHECK_FALSE(lines[0].contains("continues"));
    CHECK(lines[6]["continues"] == "net");
    CHECK(lines[6]["step"] == 5);
    CHECK(lines[7]["step"] == 5);
    CHECK(lines[9]["step"] == 7);
    // Half a line of a killed run is removed; a separate run begins a new log.
    put_bytes(log, before + R"({"epoch":0,"st)");
    REQUIRE(linear(place, "--steps 8 --load net --log-dir log").status == 0);
    CHECK(lines_of(log).size() == 10);
    REQUIRE(linear(place, "--steps 2 --log-dir log").status == 0);
    CHECK(lines_of(log).size() == 3);
}

TEST_CASE("a checkpoint is saved through a link, and a private one stays private") {
    const TemporaryDirectory place;
    std::filesystem::create_directory(place / "runs");
    std::filesystem::create_symlink("runs/1", place / "latest");
    put_bytes(place / "runs/1", "");
    std::filesystem::permissions(place / "runs/1", std::filesystem::perms(0600));
    REQUIRE(linear(place, "--steps 5 --save latest --json runs/figures").status == 0);
    CHECK(std::filesystem::is_symlink(place / "latest"));
    for (const char* name : {"runs/1", "runs/1.resume"})
        CHECK(std::filesystem::status(place / name).permissions() == std::filesystem::perms(0600));
    CHECK(linear(place, "--steps 6 --load latest --save runs/1").status == 0);
    CHECK(linear(place, "--steps 7 --load runs/1 --save latest").status == 0);
    CHECK(std::filesystem::is_symlink(place / "latest"));
}

TEST_CASE("files saved by linear have the names of the tutorial's module") {
    const TemporaryDirectory place;
    REQUIRE(linear(place, "--steps 1 --save net").status == 0);
    const std::string weights = get_bytes(place / "net");
    for (const char* name : {R"("linear.weight")", R"("linear.bias")"}) CHECK(weights.find(name) != std::string::npos);
}

TEST_CASE("an empty batch size in a state is damage, and the error suggests no flag") {
    const TemporaryDirectory place;
    REQUIRE(linear(place, "--steps 5 --save net").status == 0);
    std::string state = get_bytes(place / "net.resume");
    const auto at = state.find(R"(\"batch_size\":64)");
    REQUIRE(at != std::string::npos);
    state.replace(at, 17, R"(\"batch_size\": 0)");
    put_bytes(place / "net.resume", state);
    const ProgramRun run = linear(place, "--steps 9 --load net");
    CHECK(run.status == 1);
    CHECK(run.lines_of_err() == 1);
    CHECK(run.err.find("--batch-size 0") == std::string::npos);
}

TEST_CASE("--trace has the last steps of every process") {
    const TemporaryDirectory place;
    const std::string flags = "--steps 5 --batch-size 64 --trace trace.json --trace-steps 3";
    REQUIRE(linear(place, flags).status == 0);
    const json alone = json::parse(get_bytes(place / "trace.json"));
    REQUIRE(run_program(place, "linear --parallel ddp --devices cpu:0,cpu:1 --quiet " + flags).status == 0);
    const json ranks = json::parse(get_bytes(place / "trace.json"));
    const auto steps = [](const json& trace) {
        std::vector<std::string> found;
        for (const json& event : trace["traceEvents"])
            if (event.value("cat", "") == "step")
                found.push_back(std::to_string(event["pid"].get<int>()) + " " + event["name"].get<std::string>());
        return found;
    };
    CHECK(steps(alone) == std::vector<std::string>{"0 step 2", "0 step 3", "0 step 4"});
    CHECK(steps(ranks) ==
          std::vector<std::string>{"0 step 2", "0 step 3", "0 step 4", "1 step 2", "1 step 3", "1 step 4"});
    const ProgramRun none = linear(place, "--steps 5 --trace trace.json --trace-steps 0");
    CHECK(none.status == 2);
}
