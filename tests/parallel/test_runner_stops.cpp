// Runs that a signal stops at any step and that go on elsewhere: on other devices, under another strategy.
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "lockstep/ops/lr_schedules.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/event_log.h"
#include "lockstep/parallel/run_hooks.h"
#include "lockstep/runtime/stop_signals.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/cpu_devices.h"
#include "lockstep/tests/parallel/ddp_ranks.h"
#include "lockstep/tests/parallel/run_training.h"

using namespace lockstep;
using namespace run_training;

namespace {

const bool eight_devices = lockstep::test::set_cpu_devices(8);

/// Trains what is there, or from the beginning, until a signal comes or four epochs are over.
template <class Trained>
void go_on(Trained& training, const std::filesystem::path& file, std::optional<std::int64_t> stop_at) {
    CosineAnnealingLR schedule(training.sgd, 4, 0.001);
    auto runner = training.runner({.epochs = 4});
    if (std::filesystem::exists(file)) runner.go_on_from(load_checkpoint(training.model, training.sgd, file).value());
    const StopSignals signals;
    runner.stop_on(signals);
    runner.add(Evaluation(
        "score", [&] { return static_cast<double>(7 * runner.state().steps % 9); }, 2));
    runner.add(FollowSchedule(schedule));
    if (stop_at) runner.add(RaiseAt(*stop_at));
    runner.add(SaveCheckpoints({.file = file, .every_steps = 3, .best = file.string() + ".best", .score = "score"}));
    runner.run();
}

/// In a process of its own: one in which devices were used is not forked for ranks under ThreadSanitizer.
template <class Body>
void apart(const Body& body) {
    lockstep::testing::ForkedRanks process(1, [&](int) {
        body();
        return std::vector<std::string>();
    });
    CHECK(lockstep::testing::joined(process.finish()) == "");
}

}  // namespace

TEST_CASE("stopped at any step, and gone on with elsewhere, a run leaves the same files") {
    const test::TemporaryDirectory place;
    apart([&] {
        Alone whole;
        go_on(whole, place / "whole", std::nullopt);
    });
    std::mt19937 random(static_cast<unsigned>(test::number_from("LOCKSTEP_STOP_SEED", 1)));
    int stopped = 0;
    for (int trial = 0; trial < test::number_from("LOCKSTEP_STOP_TRIALS", 20); ++trial) {
        const auto file = place / ("net" + std::to_string(trial));
        const auto under = [&](int strategy, std::optional<std::int64_t> stop_at) {
            if (strategy == 0) {
                apart([&] {
                    Alone training;
                    go_on(training, file, stop_at);
                });
            } else if (strategy == 1) {
                apart([&] {
                    Training<DataParallel<Net>> training(Devices({Device::cpu(0), Device::cpu(1)}));
                    go_on(training, file, stop_at);
                });
            } else {
                CHECK(lockstep::testing::on_ranks(2, [&](ProcessGroup& group) {
                          Training<DistributedDataParallel<Net>> training(group);
                          // Whichever rank it comes to.
                          go_on(training, file, group.rank() == trial % 2 ? stop_at : std::nullopt);
                      }) == "");
            }
        };
        const auto step = static_cast<std::int64_t>(random() % 20);
        const int first = static_cast<int>(random() % 3), second = (first + 1 + static_cast<int>(random() % 2)) % 3;
        CAPTURE(trial, step, first, second);
        under(first, step);
        if (test::get_bytes(file) != test::get_bytes(place / "whole")) ++stopped;
        under(second, std::nullopt);
        CHECK((test::get_bytes(file) == test::get_bytes(place / "whole")));
        CHECK((test::get_bytes(file.string() + ".resume") == test::get_bytes(place / "whole.resume")));
    }
    CHECK(stopped > 10);  // of those in the last steps all are under way when the signal comes
}

namespace {

/// A signal comes before a step: the run stops after it.
struct RaiseBefore : RunHook {
    explicit RaiseBefore(std::uint64_t step) : step_(step) {}
    void before_step(Run& run) override {
        if (run.state().steps == step_) ::raise(SIGTERM);
    }
    std::uint64_t step_;
};

/// Counts what it hears of losses, and wants that number again.
struct CountLosses : RunHook {
    void before_run(Run& run) override {
        const auto kept = run.fields().find("losses");
        if (kept != run.fields().end()) count_ = std::stoll(kept->second);
    }
    void after_step(Run&, const StepReport&) override { ++count_; }
    void before_save(Run& run) override { run.fields()["losses"] = std::to_string(count_); }
    std::int64_t count_ = 0;
};

constexpr int orders = 4;

/// Better up to step 8 and no better from there on: StopEarly ends the run at step 15, within its four epochs.
double score_after(std::uint64_t steps) { return steps <= 8 ? static_cast<double>(steps) : 1.0; }

/// Hooks in one of several orders; `evaluated` has the steps at which the score was computed.
template <class Trained>
void train_with_hooks(Trained& training, const std::filesystem::path& place, int order,
                      const std::filesystem::path& from, std::optional<std::uint64_t> stop_before,
                      std::vector<std::uint64_t>& evaluated, bool writes = true) {
    ExponentialLR by_epoch(training.sgd, 0.9), by_step(training.sgd, 0.99);
    auto runner = training.runner({.epochs = 4});
    if (!from.empty()) runner.go_on_from(load_checkpoint(training.model, training.sgd, from).value());
    const StopSignals signals;
    runner.stop_on(signals);
    EventLog log(place / "log",
                 {.resume_step = static_cast<std::int64_t>(runner.state().steps), .rank = writes ? 0 : 1});
    const auto evaluation = [&] {
        runner.add(Evaluation(
            "score",
            [&] {
                evaluated.push_back(runner.state().steps);
                return score_after(runner.state().steps);
            },
            2));
    };
    const auto save = [&] {
        runner.add(SaveCheckpoints({.file = place / "net{epoch}-{step}",
                                    .every_steps = 4,
                                    .every_epochs = 1,
                                    .best = place / "best",
                                    .score = "score",
                                    .interrupted = place / "INTERRUPTED"}));
    };
    const auto early = [&] { runner.add(StopEarly("score", 4)); };
    const auto schedules = [&] {
        runner.add(FollowSchedule(by_epoch, ScheduleBy::epoch, "by epoch"));
        runner.add(FollowSchedule(by_step, ScheduleBy::step, "by step"));
    };
    const auto logs = [&] {
        runner.add(LogRun(log));
        runner.add(CountLosses());
    };
    if (stop_before) runner.add(RaiseBefore(*stop_before));
    switch (order) {
        case 0: evaluation(), logs(), schedules(), early(), save(); break;
        case 1: save(), early(), schedules(), logs(), evaluation(); break;
        case 2: early(), save(), evaluation(), logs(), schedules(); break;
        default: schedules(), evaluation(), save(), logs(), early(); break;
    }
    runner.run();
}

/// The files of a finished run by name, without what was saved at a stop, and with the lines of its log.
std::map<std::string, std::string> files_of(const std::filesystem::path& place) {
    std::map<std::string, std::string> files;
    for (const std::string& name : files_in(place))
        if (name != "log" && !name.starts_with("INTERRUPTED")) files[name] = test::get_bytes(place / name);
    files["log"] = test::get_bytes(place / "log/log.jsonl");
    return files;
}

void check_same(const std::map<std::string, std::string>& found, const std::map<std::string, std::string>& expected) {
    for (const auto& [name, bytes] : expected) {
        CAPTURE(name);
        CHECK(found.contains(name));
        if (found.contains(name)) CHECK((found.at(name) == bytes));
    }
    CHECK(found.size() == expected.size());
}

}  // namespace

TEST_CASE(
    "stopped at every step, a run misses no evaluation, line of its log or checkpoint, whatever the order of hooks") {
    const test::TemporaryDirectory place;
    for (int order = 0; order < orders; ++order)
        apart([&] {
            const auto run = [&](const std::string& where, const std::string& from, std::optional<std::uint64_t> stop,
                                 std::vector<std::uint64_t>& evaluated) {
                Alone training;
                std::filesystem::create_directories(place / where);
                train_with_hooks(training, place / where, order, from.empty() ? "" : place / where / from, stop,
                                 evaluated);
            };
            CAPTURE(order);
            const std::string whole = "whole" + std::to_string(order);
            std::vector<std::uint64_t> evaluated;
            run(whole, "", std::nullopt, evaluated);
            CHECK(evaluated == std::vector<std::uint64_t>{3, 5, 8, 10, 13, 15, 18});
            const auto expected = files_of(place / whole);
            for (std::uint64_t stop = 0; stop < 18; ++stop) {
                CAPTURE(stop);
                const std::string where = whole + "-stopped-" + std::to_string(stop);
                std::vector<std::uint64_t> again;
                run(where, "", stop, again);
                CHECK(std::filesystem::exists(place / where / "INTERRUPTED"));
                run(where, "INTERRUPTED", std::nullopt, again);
                CHECK(again == evaluated);
                check_same(files_of(place / where), expected);
            }
            // As after a kill: each checkpoint with what the log had by then, and more.
            for (const auto& [name, bytes] : expected) {
                if (!name.starts_with("net") || name.ends_with(".resume")) continue;
                CAPTURE(name);
                const std::string where = whole + "-from-" + name;
                std::filesystem::copy(place / whole, place / where, std::filesystem::copy_options::recursive);
                std::vector<std::uint64_t> again;
                run(where, name, std::nullopt, again);
                check_same(files_of(place / where), expected);
            }
        });
}

TEST_CASE("stopped at every step, two ranks miss nothing either") {
    const test::TemporaryDirectory place;
    const auto run = [&](const std::string& where, const std::string& from, std::optional<std::uint64_t> stop) {
        std::filesystem::create_directories(place / where);
        CHECK(lockstep::testing::on_ranks(2, [&](ProcessGroup& group) {
                  Training<DistributedDataParallel<Net>> training(group);
                  std::vector<std::uint64_t> evaluated;
                  const bool raises = stop && group.rank() == static_cast<int>(*stop % 2);
                  train_with_hooks(training, place / where, 1, from.empty() ? "" : place / where / from,
                                   raises ? stop : std::nullopt, evaluated, group.rank() == 0);
              }) == "");
    };
    run("whole", "", std::nullopt);
    const auto expected = files_of(place / "whole");
    for (std::uint64_t stop = 0; stop < 18; ++stop) {
        CAPTURE(stop);
        const std::string where = "stopped-" + std::to_string(stop);
        run(where, "", stop);
        if (std::filesystem::exists(place / where / "INTERRUPTED")) run(where, "INTERRUPTED", std::nullopt);
        check_same(files_of(place / where), expected);
    }
}
