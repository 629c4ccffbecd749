// One training, started by every available launcher, leaves the weights of a single process, byte for byte.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/comm/store.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/processes.h"

using namespace lockstep::test;

namespace {

using Words = std::vector<std::string>;

const std::string programs = PROGRAMS;

/// A directory with data, and the training in it.
struct Training {
    TemporaryDirectory directory;

    Training() {
        StartedProcess digits(
            {programs + "/make-digits", "--data", (directory / "data").string(), "--train", "330", "--test", "10"});
        REQUIRE(digits.status() == 0);
    }

    Words command(const Words& flags, const std::string& weights, const std::string& shards = "4") const {
        Words all{programs + "/mnist", "--quiet"};
        for (const auto& [flag, value] :
             std::vector<std::pair<std::string, std::string>>{{"--net", "small"},
                                                              {"--data", (directory / "data").string()},
                                                              {"--shards", shards},
                                                              {"--epochs", "2"},
                                                              {"--seed", "3"},
                                                              {"--save", (directory / weights).string()}}) {
            all.push_back(flag);
            all.push_back(value);
        }
        all.insert(all.end(), flags.begin(), flags.end());
        return all;
    }
    /// Trains as several processes, started by `launcher`.
    Words launched(Words launcher, const std::string& weights) const {
        for (const std::string& word : command({"--parallel", "ddp"}, weights)) launcher.push_back(word);
        return launcher;
    }

    /// Runs all ranks of a job, in order.
    static void run(const std::vector<Words>& commands) {
        std::vector<std::unique_ptr<StartedProcess>> processes;
        for (const Words& words : commands) processes.push_back(std::make_unique<StartedProcess>(words));
        for (const auto& process : processes) {
            const int status = process->status();
            INFO(process->err());
            CHECK(status == 0);
        }
    }
    std::string weights(const std::string& name) const { return get_bytes(directory / name); }

    void check(const std::vector<Words>& commands, const std::string& name) {
        if (!std::filesystem::exists(directory / "single"))
            run({command({"--parallel", "none", "--devices", "cpu:0"}, "single")});
        REQUIRE(weights("single").size() > 80'000);  // 21840 floats
        run(commands);
        CHECK((weights(name) == weights("single")));  // in parentheses: files are not printed
    }
};

}  // namespace

TEST_CASE("training started by itself, by lockstep-run and by hand leaves the weights of one process") {
    Training training;
    training.check({training.launched({}, "own")}, "own");
    training.check({training.launched({programs + "/lockstep-run", "--nproc-per-node", "2"}, "lockstep-run")},
                   "lockstep-run");
    const std::string address =
        fmt::format("tcp://127.0.0.1:{}", lockstep::TcpStoreServer{lockstep::TcpStoreOptions{}}.port());
    for (const std::string& method : {address, "file://" + (training.directory / "store").string()}) {
        std::vector<Words> ranks;
        for (const char* rank : {"0", "1"})
            ranks.push_back(training.command(
                {"--parallel", "ddp", "--rank", rank, "--world-size", "2", "--init-method", method}, "by-hand"));
        std::filesystem::remove(training.directory / "by-hand");
        training.check(ranks, "by-hand");
    }
    // Different shards give different bits, so the comparison can fail.
    training.run({training.command({"--parallel", "none", "--devices", "cpu:0"}, "other", "3")});
    CHECK_FALSE((training.weights("other") == training.weights("single")));
}

TEST_CASE("flags, data and checkpoints that differ between ranks are rejected on all, with both values") {
    Training training;
    const auto path = [&](const std::string& name) { return (training.directory / name).string(); };
    StartedProcess digits({programs + "/make-digits", "--data", path("other"), "--train", "340", "--test", "10"});
    REQUIRE(digits.status() == 0);
    for (const char* steps : {"1", "2"}) {
        training.run({{programs + "/mnist", "--quiet", "--net", "small", "--data", path("data"), "--parallel", "none",
                       "--steps", steps, "--save", path(steps)}});
        std::filesystem::copy_file(path(steps), path(steps + std::string("-alone")));
    }

    struct Case {
        Words common, of_rank_0, of_rank_1;
        std::string message;
        int status = 2;
    };
    const std::vector<Case> cases{
        {{}, {}, {"--lr", "0.5"}, "rank 1 has --lr 0.5, rank 0 has --lr 0.01; expected the same on all ranks"},
        {{}, {"--momentum", "0.1"}, {}, "rank 1 has --momentum 0.5, rank 0 has --momentum 0.1;"},
        {{}, {}, {"--seed", "2"}, "rank 1 has --seed 2, rank 0 has --seed 1;"},
        {{}, {}, {"--batch-size", "32"}, "rank 1 has --batch-size 32, rank 0 has --batch-size 64;"},
        {{}, {}, {"--steps", "4"}, "rank 1 has --steps 4, rank 0 has no --steps;"},
        {{}, {"--net", "small"}, {}, "rank 1 has --net cnn, rank 0 has --net small;"},
        {{}, {}, {"--deterministic"}, "rank 1 has --deterministic, rank 0 has no --deterministic;"},
        {{}, {}, {"--allow-tf32"}, "rank 1 has --allow-tf32, rank 0 has no --allow-tf32;"},
        {{}, {"--benchmark"}, {}, "rank 1 has no --benchmark, rank 0 has --benchmark;"},
        {{}, {}, {"--load", path("1")}, "rank 1 has --load, rank 0 has no --load;"},
        {{}, {}, {"--data", path("other")}, "rank 1 has 340 rows to train on, rank 0 has 330 rows to train on;"},
        {{}, {"--load", path("1")}, {"--load", path("2")}, "rank 1 has a run of 2 steps in --load, rank 0 has a"},
        {{}, {"--load", path("1-alone")}, {"--load", path("2-alone")}, "the replica of rank 1 differs from that of", 1},
        // The same values, written differently, and flags that may differ between processes.
        {{"--steps", "0"}, {"--lr", "0.010", "--workers", "2"}, {"--lr", "1e-2", "--timeout", "200"}, "", 0}};
    for (const Case& one : cases) {
        const std::string store = "file://" + path("differ" + std::to_string(&one - cases.data()));
        std::vector<std::unique_ptr<StartedProcess>> ranks;
        for (const auto* own : {&one.of_rank_0, &one.of_rank_1}) {
            Words words{
                programs + "/mnist", "--quiet", "--parallel",    "ddp", "--rank", own == &one.of_rank_0 ? "0" : "1",
                "--world-size",      "2",       "--init-method", store};
            if (std::find(own->begin(), own->end(), "--data") == own->end())
                for (const std::string& word : {std::string("--data"), path("data")}) words.push_back(word);
            if (one.message.find("--net") == std::string::npos)
                for (const char* word : {"--net", "small"}) words.emplace_back(word);
            for (const Words* more : {&one.common, own}) words.insert(words.end(), more->begin(), more->end());
            ranks.push_back(std::make_unique<StartedProcess>(words));
        }
        for (const auto& rank : ranks) {
            const int status = rank->status();
            const std::string err = rank->err();
            CAPTURE(one.message, err);
            CHECK(status == one.status);
            CHECK(err.find(one.message) != std::string::npos);
            CHECK(std::count(err.begin(), err.end(), '\n') == (one.status == 0 ? 0 : 1));
        }
    }
}

TEST_CASE("training under torchrun leaves the weights of one process", "[.torchrun]") {
    const auto torchrun = found_launcher("LOCKSTEP_TORCHRUN", "torchrun");
    if (!torchrun) return;
    Training training;
    training.check({training.launched({*torchrun, "--standalone", "--nproc-per-node", "2", "--no-python"}, "torchrun")},
                   "torchrun");
}

TEST_CASE("training under mpirun leaves the weights of one process", "[.mpirun]") {
    const auto mpirun = found_launcher("LOCKSTEP_MPIRUN", "mpirun");
    if (!mpirun) return;
    Training training;
    Words launcher{*mpirun, "--oversubscribe", "-n", "2"};
    if (::geteuid() == 0) launcher.emplace_back("--allow-run-as-root");
    training.check({training.launched(launcher, "mpirun")}, "mpirun");
}
