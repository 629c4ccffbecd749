// Saving programs are killed and frozen at any instant. Their files must be a pair of one generation from which a run
// resumes bit-identically. LOCKSTEP_SAVE_KILLS and LOCKSTEP_SAVE_FREEZES: numbers of trials; LOCKSTEP_SAVE_SEED: their
// seed.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <thread>

#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/checkpoints.h"
#include "lockstep/tests/fixtures/environment.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/processes.h"
#include "lockstep/tests/fixtures/waiting.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

using std::chrono::microseconds;

const bool one_device = lockstep::test::set_cpu_devices(1);

StartedProcess writer(const std::filesystem::path& file, std::uint64_t seed, const char* how) {
    return StartedProcess({CHECKPOINT_WRITER, file.string(), std::to_string(seed), how});
}

bool begins(const StartedProcess& process) {
    return comes_true([&] { return !process.out().empty(); });
}

/// Duration of a save here and now, which depends on disks and other programs.
microseconds time_of_a_save(SavedTraining& training, const std::filesystem::path& file) {
    const auto begin = std::chrono::steady_clock::now();
    training.save(file);
    return std::chrono::duration_cast<microseconds>(std::chrono::steady_clock::now() - begin);
}

/// Sleeps for up to `most`.
void sleep_a_while(std::mt19937& random, microseconds most) {
    std::this_thread::sleep_for(microseconds(random() % static_cast<std::uint64_t>(most.count() + 1)));
}

std::mt19937 random_source() {
    return std::mt19937(
        static_cast<unsigned>(number_from("LOCKSTEP_SAVE_SEED", static_cast<int>(std::random_device{}()))));
}

/// Loads the pair, and trains a step, whose result depends on the momentum.
void check_pair(const std::filesystem::path& file, Uninterrupted& expected, std::uint64_t seed) {
    SavedTraining training(seed + 1000);  // begins with different weights
    const auto run = training.load(file);
    REQUIRE(run);
    CHECK(run->steps > 0);
    CHECK(run->epoch == run->steps / 7);
    CHECK(run->seed == seed);
    CHECK((training.weights() == expected.after(run->steps)));
}

/// With the batches of `seed`, from the same file.
void check_resumes(const std::filesystem::path& file, Uninterrupted& expected, std::uint64_t seed) {
    SavedTraining training(seed);
    training.load(file);
    training.to(training.steps() + 2);
    CHECK((training.weights() == expected.after(training.steps())));
}

}  // namespace

TEST_CASE("a saving program killed at any moment leaves a pair that resumes bit-identically") {
    const char* const how = GENERATE("on", "behind");
    CAPTURE(how);
    const TemporaryDirectory directory;
    const auto file = directory / "net";
    constexpr std::uint64_t seed = 3;
    Uninterrupted expected(seed);
    std::mt19937 random = random_source();
    microseconds save_time{};
    {
        SavedTraining training(seed);
        training.step();
        for (int i = 0; i < 3; ++i) save_time = std::max(save_time, time_of_a_save(training, file));
    }
    const int kills = number_from("LOCKSTEP_SAVE_KILLS", 20);
    int in_the_middle = 0;
    for (int trial = 0; trial < kills; ++trial) {
        {
            auto process = writer(file, seed, how);
            REQUIRE(begins(process));
            sleep_a_while(random, 3 * save_time);
            CHECK_FALSE(process.ended());
            process.send(SIGKILL);
            CHECK(process.status() == 128 + SIGKILL);
        }
        CAPTURE(trial, directory.names());
        if (directory.names() != std::set<std::string>{"net", "net.resume"}) ++in_the_middle;
        check_pair(file, expected, seed);
        check_resumes(file, expected, seed);
    }
    SavedTraining last(seed);
    REQUIRE(last.load(file));
    last.save(file);
    CHECK(directory.names() == std::set<std::string>{"net", "net.resume"});
    INFO("killed in the middle of a save: " << in_the_middle << " of " << kills);
    if (std::getenv("LOCKSTEP_SAVE_KILLS"))
        std::printf("%s: %d kills, %d of them in the middle of a save, after %llu steps\n", how, kills, in_the_middle,
                    static_cast<unsigned long long>(last.steps()));
}

TEST_CASE("a load during another program's save finds a matching pair") {
    const TemporaryDirectory directory;
    const auto file = directory / "net";
    Uninterrupted expected(3);
    auto process = writer(file, 3, "new");
    REQUIRE(comes_true([&] { return std::filesystem::exists(resume_path(file)); }));
    std::uint64_t last = 0;
    int changes = 0;
    const auto late = std::chrono::steady_clock::now() + hang;
    for (int trial = 0; trial < 100 || (changes < 3 && std::chrono::steady_clock::now() < late); ++trial) {
        SavedTraining training(99);
        const auto run = training.load(file);
        REQUIRE(run);
        CHECK(run->steps >= last);
        changes += run->steps > last ? 1 : 0;
        last = run->steps;
        CHECK((training.weights() == expected.after(last)));
    }
    CHECK(changes > 1);
    CHECK_FALSE(process.ended());
}

TEST_CASE("two programs that save to one file, frozen at any instant, never leave a mixed pair") {
    const TemporaryDirectory directory;
    Uninterrupted first(3), second(4);
    std::mt19937 random = random_source();
    SavedTraining other(5);
    const microseconds save_time = time_of_a_save(other, directory / "other");
    const int trials = number_from("LOCKSTEP_SAVE_FREEZES", 10);
    for (int trial = 0; trial < trials; ++trial) {
        const auto file = directory / ("net" + std::to_string(trial));
        {
            StartedProcess writers[] = {writer(file, 3, "new"), writer(file, 4, "new")};
            for (auto& process : writers) REQUIRE(begins(process));
            for (int round = 0; round < 6; ++round) {
                auto& frozen = writers[random() % 2];
                frozen.send(SIGSTOP);
                sleep_a_while(random, save_time);
                if (random() % 3 != 0) frozen.send(SIGCONT);
                sleep_a_while(random, save_time / 2);
            }
            REQUIRE(comes_true([&] {  // two frozen ones would never have saved anything
                for (auto& process : writers) process.send(SIGCONT);
                return std::filesystem::exists(resume_path(file));
            }));
            for (auto& process : writers) {
                CHECK_FALSE(process.ended());
                process.send(SIGKILL);
            }
        }
        CAPTURE(trial);
        SavedTraining training(99);
        const auto run = training.load(file);
        REQUIRE(run);
        const bool of_first = run->fields.at("writer") == "3";
        check_pair(file, of_first ? first : second, of_first ? 3 : 4);
        check_resumes(file, of_first ? first : second, of_first ? 3 : 4);
    }
}
