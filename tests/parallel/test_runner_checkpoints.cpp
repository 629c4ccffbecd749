// The checkpoints of a run: when they are saved, which are kept, and that training goes on meanwhile and without them.
#include <cmath>
#include <csignal>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/ops/lr_schedules.h"
#include "lockstep/parallel/data/files/file_lock.h"
#include "lockstep/parallel/data/safetensors.h"
#include "lockstep/parallel/run_hooks.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/stop_signals.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/parallel/messages.h"
#include "lockstep/tests/parallel/run_training.h"
#include "lockstep/tests/parallel/taken_warnings.h"

using namespace lockstep;
using namespace run_training;

TEST_CASE("the newest checkpoints and the best one are kept, with their scores") {
    const test::TemporaryDirectory place;
    const std::vector<double> scores{0.5, 0.9, std::numeric_limits<double>::quiet_NaN(), 0.9, 0.7};
    Alone training;
    auto runner = training.runner({.epochs = 5});
    runner.add(Evaluation("dice", [&] { return scores[runner.state().epoch - 1]; }));
    std::vector<std::string> saved;
    SaveCheckpoints& saving = runner.add(SaveCheckpoints({.file = place / "net{epoch}-{step}.safetensors",
                                                          .every_epochs = 1,
                                                          .keep = 2,
                                                          .best = place / "best.safetensors",
                                                          .score = "dice"}));
    saving.on_save = [&](const auto& file) { saved.push_back(file.stem()); };
    runner.run();
    CHECK(files_in(place.path()) == std::vector<std::string>{"best.safetensors", "best.safetensors.resume",
                                                             "net4-20.safetensors", "net4-20.safetensors.resume",
                                                             "net5-25.safetensors", "net5-25.safetensors.resume"});
    CHECK(saved == std::vector<std::string>{"best", "net1-5", "best", "net2-10", "net3-15", "net4-20", "net5-25"});
    const auto state_in = [&](const char* file) {
        Alone fresh;
        return load_checkpoint(fresh.model, fresh.sgd, place / file).value();
    };
    const RunState best = state_in("best.safetensors"), last = state_in("net5-25.safetensors");
    CHECK(best.steps == 10);
    CHECK(number_in(best, "score dice") == 0.9);
    CHECK(last.steps == 25);
    CHECK(number_in(last, "score dice") == 0.7);
    CHECK(number_in(last, "best dice") == 0.9);

    const auto refused = [](const SaveCheckpointsOptions& options) {
        return message_of<InvalidArgument>([&] { SaveCheckpoints bad(options); });
    };
    CHECK_THAT(refused({.file = "net", .keep = 2}), test::contains("expected {epoch} or {step} in the name"));
    CHECK_THAT(refused({}), test::contains("no file"));
    CHECK_THAT(refused({.file = "net", .every_steps = -1}), test::contains("every -1 steps"));
    CHECK_THAT(refused({.file = "net", .best = "best"}), test::contains("the name of its score"));
}

TEST_CASE("checkpoints every so many steps; none where the run ends and saves anyway") {
    const test::TemporaryDirectory place;
    Alone training;
    auto runner = training.runner({.epochs = 2});
    std::vector<std::string> saved;
    SaveCheckpoints& saving = runner.add(SaveCheckpoints({.file = place / "net{epoch}-{step}", .every_steps = 5}));
    saving.on_save = [&](const auto& file) { saved.push_back(file.filename()); };
    runner.run();
    CHECK(saved == std::vector<std::string>{"net1-5", "net2-10"});
}

TEST_CASE("a run goes on while a checkpoint is written, and can be gone on with from any of them") {
    const test::TemporaryDirectory place;
    Alone training;
    StepLR schedule(training.sgd, 2, 0.5);
    auto runner = training.runner({.epochs = 4});
    runner.add(FollowSchedule(schedule, ScheduleBy::step));
    // A save that nobody lets begin until two steps after it have been made.
    const auto disk = internal::FileLock::acquire(place / "net3");
    std::unique_lock held(disk->writing());
    struct LetGo : RunHook {
        explicit LetGo(std::function<void()> call) : call_(std::move(call)) {}
        void after_step(Run&, const StepReport& step) override {
            if (step.step == 4) call_();
        }
        std::function<void()> call_;
    };
    runner.add(LetGo([&] {
        CHECK_FALSE(std::filesystem::exists(place / "net3"));
        held.unlock();
    }));
    std::vector<std::string> saved;
    runner.add(SaveCheckpoints({.file = place / "net{step}", .every_steps = 3})).on_save = [&](const auto& file) {
        saved.push_back(file.filename());
    };
    runner.run();
    CHECK(saved == std::vector<std::string>{"net3", "net6", "net9", "net12", "net15", "net18", "net20"});
    for (const int step : {3, 6, 9, 12, 15, 18}) {
        INFO(step);
        Alone rest;
        StepLR own(rest.sgd, 2, 0.5);
        auto other = rest.runner({.epochs = 4});
        const auto state = load_checkpoint(rest.model, rest.sgd, place / ("net" + std::to_string(step))).value();
        CHECK(state.epoch == static_cast<std::uint64_t>(step / 5));
        CHECK(state.batch == step % 5);
        other.go_on_from(state);
        other.add(FollowSchedule(own, ScheduleBy::step));
        other.run();
        CHECK(other.state().steps == 20);
        CHECK(rest.weights() == training.weights());
    }
}

TEST_CASE("a run that goes on keeps as many checkpoints as one that never stopped, and the best of all") {
    const std::vector<double> scores{0.5, 0.9, 0.6, 0.8, 0.7, 0.95};
    const auto train = [&](const test::TemporaryDirectory& place, std::uint64_t epochs, const char* from) {
        Alone training;
        auto runner = training.runner({.epochs = epochs});
        if (*from != '\0') runner.go_on_from(load_checkpoint(training.model, training.sgd, place / from).value());
        runner.add(Evaluation("dice", [&] { return scores[runner.state().epoch - 1]; }));
        runner.add(SaveCheckpoints(
            {.file = place / "net{epoch}", .every_epochs = 1, .keep = 2, .best = place / "best", .score = "dice"}));
        runner.run();
    };
    const auto best_of = [](const test::TemporaryDirectory& place) {
        Alone fresh;
        return load_checkpoint(fresh.model, fresh.sgd, place / "best").value().steps;
    };
    const test::TemporaryDirectory place, other;
    train(place, 3, "");
    CHECK(files_in(place.path()) ==
          std::vector<std::string>{"best", "best.resume", "net2", "net2.resume", "net3", "net3.resume"});
    test::put_bytes(place / "net0", "somebody else's");
    train(place, 5, "net3");
    CHECK(files_in(place.path()) ==
          std::vector<std::string>{"best", "best.resume", "net0", "net4", "net4.resume", "net5", "net5.resume"});
    CHECK(best_of(place) == 10);  // that of 0.9, and not of 0.8 after the resume
    train(place, 6, "net5");
    CHECK(best_of(place) == 30);
    train(other, 6, "");
    for (const char* file : {"best", "best.resume", "net5", "net5.resume", "net6", "net6.resume"})
        CHECK((test::get_bytes(place / file) == test::get_bytes(other / file)));
}

TEST_CASE("a run whose checkpoints cannot be saved goes on, says so, and fails where the last one could not be") {
    const test::TemporaryDirectory place;
    const test::TakenWarnings warnings;
    Alone expected;
    expected.runner({.epochs = 2}).run();
    const auto train = [&](std::optional<std::uint64_t> room_again) {
        Alone training;
        auto runner = training.runner({.epochs = 2});
        std::optional<test::FileSizeLimit> full(100);
        std::vector<std::string> saved;
        struct MakeRoom : RunHook {
            explicit MakeRoom(std::function<void(std::uint64_t)> call) : call_(std::move(call)) {}
            void after_epoch(Run& run) override { call_(run.state().epoch); }
            std::function<void(std::uint64_t)> call_;
        };
        const std::size_t warned = warnings.all().size();
        runner.add(SaveCheckpoints({.file = place / "net{step}", .every_steps = 4})).on_save = [&](const auto& file) {
            saved.push_back(file.filename());
        };
        runner.add(MakeRoom([&](std::uint64_t epoch) {
            if (room_again != epoch) return;
            while (warnings.all().size() == warned) std::this_thread::yield();  // the first save has failed
            full.reset();
        }));
        std::string failed;
        try {
            runner.run();
        } catch (const DataError& error) {
            failed = error.what();
        }
        full.reset();
        CHECK(runner.state().steps == 10);
        CHECK(training.weights() == expected.weights());
        return std::pair(saved, failed);
    };
    const auto [none, failed] = train(std::nullopt);
    CHECK(none.empty());
    CHECK_THAT(failed, test::contains("net10: offset 100: writing failed"));
    CHECK(warnings.all().size() == 2);  // steps 4 and 8
    for (const std::string& text : warnings.all()) CHECK_THAT(text, test::contains("training continues: "));
    CHECK(files_in(place.path()).empty());
    const auto [some, no_failure] = train(1);
    CHECK(some == std::vector<std::string>{"net8", "net10"});
    CHECK(no_failure.empty());
    CHECK(warnings.all().size() == 3);
}

TEST_CASE("what those who use the model alone should know stands in the file of the weights") {
    const test::TemporaryDirectory place;
    Alone training;
    auto runner = training.runner({.epochs = 1});
    runner.go_on_from({.metadata = {{"who", "a test"}}});
    runner.add(SaveCheckpoints({.file = place / "net"}));
    runner.run();
    CHECK(SafetensorsFile(place / "net").metadata() == SafetensorsMetadata{{"format", "pt"}, {"who", "a test"}});
    Alone fresh;
    CHECK(load_checkpoint(fresh.model, fresh.sgd, place / "net").value().steps == 5);
}

TEST_CASE("a run that a signal stops is saved under the name for that, and goes on from there") {
    const test::TemporaryDirectory place;
    const auto options = [&] {
        return SaveCheckpointsOptions{
            .file = place / "net{epoch}", .every_epochs = 1, .interrupted = place / "INTERRUPTED.safetensors"};
    };
    {
        Alone training;
        auto runner = training.runner({.epochs = 3});
        const StopSignals signals;
        runner.stop_on(signals);
        runner.add(RaiseAt(5));
        runner.add(SaveCheckpoints(options()));
        runner.run();
        CHECK(runner.stopped() == SIGTERM);
        CHECK(files_in(place.path()) == std::vector<std::string>{"INTERRUPTED.safetensors",
                                                                 "INTERRUPTED.safetensors.resume", "net1",
                                                                 "net1.resume"});
    }
    Alone whole, rest;
    whole.runner({.epochs = 3}).run();
    auto runner = rest.runner({.epochs = 3});
    runner.go_on_from(load_checkpoint(rest.model, rest.sgd, place / "INTERRUPTED.safetensors").value());
    runner.add(SaveCheckpoints(options()));
    runner.run();
    CHECK(rest.weights() == whole.weights());
    CHECK(files_in(place.path()).size() == 8);  // and the end of epochs 2 and 3
}
