// The checkpoints of a run: when they are saved, which ones remain, and that training continues during a save and after
// a failed one.
#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/ops/lr_schedules.h"
#include "lockstep/parallel/data/files/file_lock.h"
#include "lockstep/parallel/data/safetensors.h"
#include "lockstep/parallel/event_log.h"
#include "lockstep/parallel/run_hooks.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/stop_signals.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/checkpoints.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("the newest checkpoints and the best one are kept, with their scores") {
    const test::TemporaryDirectory place;
    const std::vector<double> scores{0.5, 0.9, std::numeric_limits<double>::quiet_NaN(), 0.9, 0.7};
    SingleTraining training;
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
    CHECK(place.names() == std::set<std::string>{"best.safetensors", "best.safetensors.resume", "net4-20.safetensors",
                                                 "net4-20.safetensors.resume", "net5-25.safetensors",
                                                 "net5-25.safetensors.resume"});
    CHECK(saved == std::vector<std::string>{"best", "net1-5", "best", "net2-10", "net3-15", "net4-20", "net5-25"});
    const auto state_in = [&](const char* file) {
        SingleTraining fresh;
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
    CHECK_THAT(refused({.file = "net{step}", .best = "best{step}", .score = "dice"}),
               test::contains("best is best{step}; expected a name without {epoch} and {step}"));
    CHECK_THAT(refused({.file = "net", .best = "{epoch}/best", .score = "dice"}), test::contains("{epoch}/best"));
    CHECK_THAT(refused({.file = "net{epoch}", .interrupted = "stop{epoch}"}), test::contains("interrupted is stop{"));
    CHECK_THAT(refused({.file = "net", .best = "net", .score = "dice"}), test::contains("expected different files"));
    CHECK_THAT(refused({.file = "net", .best = "b", .score = "dice", .interrupted = "b"}),
               test::contains("best is b and interrupted is b"));
}

TEST_CASE("checkpoints of different purposes have no file in common, however their names are written") {
    const test::TemporaryDirectory place;
    std::filesystem::create_directory(place / "runs");
    std::filesystem::create_directory_symlink(place / "runs", place / "link");
    std::filesystem::create_symlink(place / "runs/net", place / "runs/best");
    const auto with_best = [&](const char* file, const char* best) {
        return [&place, file, best] { SaveCheckpoints({.file = place / file, .best = place / best, .score = "dice"}); };
    };
    for (const auto& [file, best] :
         std::vector<std::pair<const char*, const char*>>{{"runs/net", "runs/./net"},
                                                          {"runs/net", "runs/../runs/net"},
                                                          {"runs/net", "link/net"},
                                                          {"runs/net", "runs/best"},  // a link
                                                          {"runs/net", "runs/net.resume"},
                                                          {"runs/net.resume", "runs/net"},
                                                          {"runs/net{epoch}", "runs/net12"},
                                                          {"link/net{epoch}-{step}.st", "runs/net1-20.st"},
                                                          {"runs/{step}/net", "runs/7/net"},
                                                          {"runs/net{step}", "runs/net3.resume"},
                                                          {"runs/net{step}{epoch}", "runs/net34"}}) {
        CAPTURE(file, best);
        CHECK_THAT(message_of<InvalidArgument>(with_best(file, best)), test::contains("can be the same file"));
        CHECK_THAT(
            message_of<InvalidArgument>([&, file = file, best = best] {
                SaveCheckpoints(
                    {.file = place / "other", .best = place / best, .score = "dice", .interrupted = place / file});
            }),
            test::contains(std::string_view(file).find('{') != std::string_view::npos ? "expected a name without"
                                                                                      : "can be the same file"));
    }
    for (const auto& [file, best] :
         std::vector<std::pair<const char*, const char*>>{{"runs/net", "runs/net2"},
                                                          {"runs/net{epoch}", "runs/net"},
                                                          {"runs/net{epoch}", "runs/net1a"},
                                                          {"runs/net{epoch}", "net1"},
                                                          {"runs/net-{step}", "runs/net1"}}) {
        CAPTURE(file, best);
        CHECK_NOTHROW(with_best(file, best)());
    }
    CHECK_THAT(message_of<InvalidArgument>(
                   [&] { SaveCheckpoints({.file = place / "net{step}", .keep = 2, .interrupted = place / "net8"}); }),
               test::contains("interrupted is"));
    CHECK_NOTHROW(SaveCheckpoints({.file = place / "net", .interrupted = place / "net"}));
}

TEST_CASE("a damaged list of kept checkpoints is an error before the first step") {
    const test::TemporaryDirectory place;
    const auto resumed = [&](const std::string& kept) {
        SingleTraining training;
        auto runner = training.runner({.epochs = 1});
        runner.resume_from({.fields = {{"kept checkpoints", kept}}});
        runner.add(SaveCheckpoints({.file = place / "net{epoch}", .keep = 1}));
        runner.run();
    };
    for (const char* kept : {"1 18446744073709551616", "99999999999999999999 5", "1 5 2", "1", "-1 5", "1 -5", "1.0 5",
                             "1 5x", "1  5", " 1 5", "1 5 ", "1\n5"}) {
        INFO(kept);
        CHECK(message_of<DataError>([&] { resumed(kept); }) == "the checkpoint's field 'kept checkpoints' is '" +
                                                                   std::string(kept) +
                                                                   "'; expected pairs of an epoch and a step");
    }
    CHECK(place.names().empty());
    CHECK_NOTHROW(resumed(""));
    CHECK_NOTHROW(resumed("1 18446744073709551615"));
}

TEST_CASE("when a checkpoint is saved, the log has all of its steps") {
    const test::TemporaryDirectory place;
    SingleTraining training;
    EventLog log(place.path(), {.name = "run"});
    auto runner = training.runner({.epochs = 2});
    runner.add(LogRun(log));
    std::vector<std::ptrdiff_t> steps;
    SaveCheckpoints& saving = runner.add(SaveCheckpoints({.file = place / "net{step}.safetensors", .every_steps = 3}));
    saving.on_save = [&](const auto&) {
        const std::string lines = test::get_bytes(place / "run.jsonl");
        steps.push_back(std::count(lines.begin(), lines.end(), '\n'));
    };
    runner.run();
    REQUIRE(steps.size() >= 3);
    for (std::size_t i = 0; i < 3; ++i) CHECK(steps[i] >= static_cast<std::ptrdiff_t>(3 * (i + 1)));
}

TEST_CASE("checkpoints are saved every N steps, but not if the run ends and saves anyway") {
    const test::TemporaryDirectory place;
    SingleTraining training;
    auto runner = training.runner({.epochs = 2});
    std::vector<std::string> saved;
    SaveCheckpoints& saving = runner.add(SaveCheckpoints({.file = place / "net{epoch}-{step}", .every_steps = 5}));
    saving.on_save = [&](const auto& file) { saved.push_back(file.filename()); };
    runner.run();
    CHECK(saved == std::vector<std::string>{"net1-5", "net2-10"});
}

TEST_CASE("several SaveCheckpoints of a run have their own due steps, kept files and best scores") {
    const std::vector<double> scores{0.5, 0.9, 0.6, 0.8};
    const test::TemporaryDirectory place;
    const auto train = [&](std::uint64_t epochs, const char* from) {
        SingleTraining training;
        auto runner = training.runner({.epochs = epochs});
        if (*from != '\0') runner.resume_from(load_checkpoint(training.model, training.sgd, place / from).value());
        runner.add(Evaluation("dice", [&] { return scores[runner.state().epoch - 1]; }));
        const auto save = [&](const std::string& file, std::int64_t steps, std::int64_t each, std::size_t keep) {
            runner.add(SaveCheckpoints({.file = place / file,
                                        .every_steps = steps,
                                        .every_epochs = each,
                                        .at_end = false,
                                        .keep = keep,
                                        .best = place / ("best of " + file.substr(0, 1)),
                                        .score = "dice"}));
        };
        save("a{step}", 5, 0, 2);
        save("b{epoch}", 0, 2, 0);
        save("c{step}", 2, 0, 3);
        runner.run();
    };
    const auto names = [&] {
        std::set<std::string> weights;
        for (const std::string& name : place.names())
            if (name.find(".resume") == std::string::npos) weights.insert(name);
        return weights;
    };
    using Names = std::set<std::string>;
    train(2, "");
    CHECK(names() == Names{"a5", "a10", "b2", "c6", "c8", "c10", "best of a", "best of b", "best of c"});
    train(4, "b2");
    CHECK(names() == Names{"a15", "a20", "b2", "b4", "c16", "c18", "c20", "best of a", "best of b", "best of c"});
    for (const char* best : {"best of a", "best of b", "best of c"}) {
        SingleTraining fresh;
        CHECK(load_checkpoint(fresh.model, fresh.sgd, place / best).value().steps == 10);
    }
}

TEST_CASE("a run continues while a checkpoint is written, and resumes from any of them") {
    const test::TemporaryDirectory place;
    SingleTraining training;
    StepLR schedule(training.sgd, 2, 0.5);
    auto runner = training.runner({.epochs = 4});
    runner.add(FollowSchedule(schedule, ScheduleBy::step));
    // A save that is blocked until two later steps have been made.
    const auto disk = internal::FileLock::acquire(place / "net3");
    std::unique_lock held(disk->writing());
    struct LetGo : RunHook {
        explicit LetGo(std::function<void()> call) : call_(std::move(call)) {}
        void after_step(Runner&, const StepReport& step) override {
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
        SingleTraining rest;
        StepLR own(rest.sgd, 2, 0.5);
        auto other = rest.runner({.epochs = 4});
        const auto state = load_checkpoint(rest.model, rest.sgd, place / ("net" + std::to_string(step))).value();
        CHECK(state.epoch == static_cast<std::uint64_t>(step / 5));
        CHECK(state.batch == step % 5);
        other.resume_from(state);
        other.add(FollowSchedule(own, ScheduleBy::step));
        other.run();
        CHECK(other.state().steps == 20);
        CHECK(rest.weights() == training.weights());
    }
}

TEST_CASE("a resumed run keeps as many checkpoints as an uninterrupted one, and the best of all") {
    const std::vector<double> scores{0.5, 0.9, 0.6, 0.8, 0.7, 0.95};
    const auto train = [&](const test::TemporaryDirectory& place, std::uint64_t epochs, const char* from) {
        SingleTraining training;
        auto runner = training.runner({.epochs = epochs});
        if (*from != '\0') runner.resume_from(load_checkpoint(training.model, training.sgd, place / from).value());
        runner.add(Evaluation("dice", [&] { return scores[runner.state().epoch - 1]; }));
        runner.add(SaveCheckpoints(
            {.file = place / "net{epoch}", .every_epochs = 1, .keep = 2, .best = place / "best", .score = "dice"}));
        runner.run();
    };
    const auto best_of = [](const test::TemporaryDirectory& place) {
        SingleTraining fresh;
        return load_checkpoint(fresh.model, fresh.sgd, place / "best").value().steps;
    };
    const test::TemporaryDirectory place, other;
    train(place, 3, "");
    CHECK(place.names() == std::set<std::string>{"best", "best.resume", "net2", "net2.resume", "net3", "net3.resume"});
    test::put_bytes(place / "net0", "somebody else's");
    train(place, 5, "net3");
    CHECK(place.names() ==
          std::set<std::string>{"best", "best.resume", "net0", "net4", "net4.resume", "net5", "net5.resume"});
    CHECK(best_of(place) == 10);  // that of score 0.9, and not of 0.8 after the resume
    train(place, 6, "net5");
    CHECK(best_of(place) == 30);
    train(other, 6, "");
    for (const char* file : {"best", "best.resume", "net5", "net5.resume", "net6", "net6.resume"})
        CHECK((test::get_bytes(place / file) == test::get_bytes(other / file)));
}

TEST_CASE("a run that was killed before it removed an old checkpoint removes it after a resume") {
    const auto train = [&](const test::TemporaryDirectory& place, const std::string& from,
                           const std::function<void(const std::filesystem::path&)>& on_save, bool stops = false) {
        SingleTraining training;
        auto runner = training.runner({.epochs = 4});
        if (!from.empty()) runner.resume_from(load_checkpoint(training.model, training.sgd, place / from).value());
        runner
            .add(SaveCheckpoints(
                {.file = place / "net{step}", .every_steps = 3, .keep = 2, .interrupted = place / "INTERRUPTED"}))
            .on_save = on_save;
        std::stop_source stop;
        if (stops) stop.request_stop();
        runner.stop_on(stop.get_token());
        runner.run();
    };
    const test::TemporaryDirectory whole;
    std::map<std::string, test::TemporaryDirectory> killed;  // by the newest checkpoint
    std::vector<std::string> complete;                       // the next checkpoint may be half written
    train(whole, "", [&](const std::filesystem::path& saved) {
        complete.push_back(saved.filename());
        complete.push_back(resume_path(saved).filename());
        for (const std::string& name : complete)
            if (std::filesystem::exists(whole / name))
                std::filesystem::copy_file(whole / name, killed[saved.filename()] / name);
    });
    CHECK(whole.names() == std::set<std::string>{"net18", "net18.resume", "net20", "net20.resume"});
    CHECK(killed.size() == 7);
    for (const auto& [newest, place] : killed) {
        CAPTURE(newest);
        if (newest == "net9") CHECK(place.file_count() == 6);
        train(place, newest, {}, newest != "net20");  // stops before the first step
        train(place, newest == "net20" ? newest : "INTERRUPTED", {});
        for (const char* name : {"INTERRUPTED", "INTERRUPTED.resume"}) std::filesystem::remove(place / name);
        CHECK(place.names() == whole.names());
        for (const std::string& name : whole.names())
            CHECK((test::get_bytes(place / name) == test::get_bytes(whole / name)));
    }
}

TEST_CASE("a run that cannot save checkpoints continues with warnings, and fails if the last save fails") {
    const test::TemporaryDirectory place;
    const test::Warnings warnings;
    SingleTraining expected;
    expected.runner({.epochs = 2}).run();
    const auto train = [&](std::optional<std::uint64_t> room_again) {
        SingleTraining training;
        auto runner = training.runner({.epochs = 2});
        std::optional<test::FileSizeLimit> full(100);
        std::vector<std::string> saved;
        struct MakeRoom : RunHook {
            explicit MakeRoom(std::function<void(std::uint64_t)> call) : call_(std::move(call)) {}
            void after_epoch(Runner& run) override { call_(run.state().epoch); }
            std::function<void(std::uint64_t)> call_;
        };
        const std::size_t warned = warnings.texts().size();
        runner.add(SaveCheckpoints({.file = place / "net{step}", .every_steps = 4})).on_save = [&](const auto& file) {
            saved.push_back(file.filename());
        };
        runner.add(MakeRoom([&](std::uint64_t epoch) {
            if (room_again != epoch) return;
            while (warnings.texts().size() == warned) std::this_thread::yield();  // the first save has failed
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
    CHECK(warnings.texts().size() == 2);  // steps 4 and 8
    for (const std::string& text : warnings.texts()) CHECK_THAT(text, test::contains("training continues: "));
    CHECK(place.names().empty());
    const auto [some, no_failure] = train(1);
    CHECK(some == std::vector<std::string>{"net8", "net10"});
    CHECK(no_failure.empty());
    CHECK(warnings.texts().size() == 3);
}

TEST_CASE("the weights file contains what a user of the model needs") {
    const test::TemporaryDirectory place;
    SingleTraining training;
    auto runner = training.runner({.epochs = 1});
    runner.resume_from({.metadata = {{"author", "a test"}}});
    runner.add(SaveCheckpoints({.file = place / "net"}));
    runner.run();
    CHECK(SafetensorsFile(place / "net").metadata() == SafetensorsMetadata{{"format", "pt"}, {"author", "a test"}});
    SingleTraining fresh;
    CHECK(load_checkpoint(fresh.model, fresh.sgd, place / "net").value().steps == 5);
}

TEST_CASE("a run stopped by a signal is saved under a separate name and resumes from that file") {
    const test::TemporaryDirectory place;
    const auto options = [&] {
        return SaveCheckpointsOptions{
            .file = place / "net{epoch}", .every_epochs = 1, .interrupted = place / "INTERRUPTED.safetensors"};
    };
    {
        SingleTraining training;
        auto runner = training.runner({.epochs = 3});
        const StopSignals signals;
        runner.stop_on(signals);
        runner.add(RaiseAt(5));
        runner.add(SaveCheckpoints(options()));
        runner.run();
        CHECK(runner.stopped() == SIGTERM);
        CHECK(place.names() == std::set<std::string>{"INTERRUPTED.safetensors", "INTERRUPTED.safetensors.resume",
                                                     "net1", "net1.resume"});
    }
    SingleTraining whole, rest;
    whole.runner({.epochs = 3}).run();
    auto runner = rest.runner({.epochs = 3});
    runner.resume_from(load_checkpoint(rest.model, rest.sgd, place / "INTERRUPTED.safetensors").value());
    runner.add(SaveCheckpoints(options()));
    runner.run();
    CHECK(rest.weights() == whole.weights());
    CHECK(place.names().size() == 8);  // and the end of epochs 2 and 3
}
