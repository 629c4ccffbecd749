// Runs that a signal stops at any step and that resume elsewhere: on other devices, with another strategy.
#include <cmath>
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
#include "lockstep/tests/fixtures/checkpoints.h"
#include "lockstep/tests/fixtures/environment.h"
#include "lockstep/tests/fixtures/ranks.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

const bool eight_devices = lockstep::test::set_cpu_devices(8);

/// Trains from the checkpoint if it exists, otherwise from the beginning, until a signal arrives or four epochs are
/// over.
template <class Trained>
void resume(Trained& training, const std::filesystem::path& file, std::optional<std::int64_t> stop_at) {
    CosineAnnealingLR schedule(training.sgd, 4, 0.001);
    auto runner = training.runner({.epochs = 4});
    if (std::filesystem::exists(file)) runner.resume_from(load_checkpoint(training.model, training.sgd, file).value());
    const StopSignals signals;
    runner.stop_on(signals);
    runner.add(Evaluation(
        "score", [&] { return static_cast<double>(7 * runner.state().steps % 9); }, 2));
    runner.add(FollowSchedule(schedule));
    if (stop_at) runner.add(RaiseAt(*stop_at));
    runner.add(SaveCheckpoints({.file = file, .every_steps = 3, .best = file.string() + ".best", .score = "score"}));
    runner.run();
}

/// In a separate process: under ThreadSanitizer, a process that has used devices cannot be forked for ranks.
template <class Body>
void apart(const Body& body) {
    lockstep::test::ForkedRanks process(1, [&](int) {
        body();
        return std::vector<std::string>();
    });
    CHECK(lockstep::test::joined(process.finish()) == "");
}

}  // namespace

TEST_CASE("a run that is stopped at any step and resumed on other devices leaves the same files") {
    const test::TemporaryDirectory place;
    apart([&] {
        SingleTraining whole;
        resume(whole, place / "whole", std::nullopt);
    });
    std::mt19937 random(static_cast<unsigned>(test::number_from("LOCKSTEP_STOP_SEED", 1)));
    int stopped = 0;
    for (int trial = 0; trial < test::number_from("LOCKSTEP_STOP_TRIALS", 20); ++trial) {
        const auto file = place / ("net" + std::to_string(trial));
        const auto under = [&](int strategy, std::optional<std::int64_t> stop_at) {
            if (strategy == 0) {
                apart([&] {
                    SingleTraining training;
                    resume(training, file, stop_at);
                });
            } else if (strategy == 1) {
                apart([&] {
                    RunnerTraining<DataParallel<DropoutNet>> training(Devices({Device::cpu(0), Device::cpu(1)}));
                    resume(training, file, stop_at);
                });
            } else {
                CHECK(lockstep::test::on_ranks(2, [&](ProcessGroup& group) {
                          RunnerTraining<DistributedDataParallel<DropoutNet>> training(group);
                          // On either rank.
                          resume(training, file, group.rank() == trial % 2 ? stop_at : std::nullopt);
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
    CHECK(stopped > 10);  // near the end, all steps are in flight when the signal arrives
}

namespace {

/// The signal arrives before a step: the run stops after it.
struct RaiseBefore : RunHook {
    explicit RaiseBefore(std::uint64_t step) : step_(step) {}
    void before_step(Runner& run) override {
        if (run.state().steps == step_) ::raise(SIGTERM);
    }
    std::uint64_t step_;
};

/// Counts the reported losses, and restores the count on resume.
struct CountLosses : RunHook {
    void before_run(Runner& run) override {
        const auto kept = run.fields().find("losses");
        if (kept != run.fields().end()) count_ = std::stoll(kept->second);
    }
    void after_step(Runner&, const StepReport&) override { ++count_; }
    void before_save(Runner& run) override { run.fields()["losses"] = std::to_string(count_); }
    std::int64_t count_ = 0;
};

constexpr int orders = 4;

/// The score improves up to step 8 and not after that: StopEarly ends the run at step 15, within its four epochs.
double score_after(std::uint64_t steps) { return steps <= 8 ? static_cast<double>(steps) : 1.0; }

/// Hooks in one of several orders; `evaluated` has the steps at which the score was computed.
template <class Trained>
void train_with_hooks(Trained& training, const std::filesystem::path& place, int order,
                      const std::filesystem::path& from, std::optional<std::uint64_t> stop_before,
                      std::vector<std::uint64_t>& evaluated, bool writes = true) {
    ExponentialLR by_epoch(training.sgd, 0.9), by_step(training.sgd, 0.99);
    ReduceLROnPlateau by_score(training.sgd, {.maximize = true, .factor = 0.5, .patience = 1});
    auto runner = training.runner({.epochs = 4});
    if (!from.empty()) runner.resume_from(load_checkpoint(training.model, training.sgd, from).value());
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
        runner.add(FollowPlateau(by_score, "score"));
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

/// The files of a finished run by name, without those saved at a stop, and with the lines of its log.
std::map<std::string, std::string> files_of(const std::filesystem::path& place) {
    std::map<std::string, std::string> files;
    for (const std::string& name : names_in(place))
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

TEST_CASE("a run stopped at every step misses no evaluation, log line or checkpoint, for any order of hooks") {
    const test::TemporaryDirectory place;
    for (int order = 0; order < orders; ++order)
        apart([&] {
            const auto run = [&](const std::string& where, const std::string& from, std::optional<std::uint64_t> stop,
                                 std::vector<std::uint64_t>& evaluated) {
                SingleTraining training;
                std::filesystem::create_directories(place / where);
                train_with_hooks(training, place / where, order, from.empty() ? "" : place / where / from, stop,
                                 evaluated);
                // Three epochs and 17 steps, and two evaluations without a better score, twice.
                if (!stop) CHECK(training.sgd.lr() == Approx(0.05 * std::pow(0.9, 3) * std::pow(0.99, 17) * 0.25));
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
            // As after a kill: each checkpoint with the log at that time, and with later entries.
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

TEST_CASE("two ranks stopped at every step miss nothing either") {
    const test::TemporaryDirectory place;
    const auto run = [&](const std::string& where, const std::string& from, std::optional<std::uint64_t> stop) {
        std::filesystem::create_directories(place / where);
        CHECK(lockstep::test::on_ranks(2, [&](ProcessGroup& group) {
                  RunnerTraining<DistributedDataParallel<DropoutNet>> training(group);
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
