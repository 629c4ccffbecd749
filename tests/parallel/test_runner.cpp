// Runner and its hooks: when they are called, and that a run that goes on ends as one that never stopped.
#include "lockstep/parallel/runner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <csignal>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "lockstep/ops/layers.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/lr_schedules.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data/safetensors.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/run_hooks.h"
#include "lockstep/runtime/stop_signals.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/parallel/ddp_ranks.h"
#include "lockstep/tests/parallel/messages.h"

using namespace lockstep;
using lockstep::testing::expect;
using lockstep::testing::on_ranks;

namespace {

struct Net {
    Linear fc1{6, 8}, fc2{8, 2};
    Dropout drop{0.25};
    LOCKSTEP_MEMBERS(fc1, fc2, drop)
    Tensor forward(const Tensor& x) { return fc2(drop(relu(fc1(x)))); }
};

constexpr std::int64_t batches = 5;

TensorDataset<2> rows() {
    manual_seed(3);
    return TensorDataset(Tensor::randn({4 * batches, 6}), Tensor::randn({4 * batches, 2}));
}

/// A model with all that trains it.
template <class Model>
struct Training {
    template <class... Arguments>
    explicit Training(Arguments&&... arguments)
        : model((manual_seed(1), Net{}), std::forward<Arguments>(arguments)..., EngineOptions{.shards = 2}),
          sgd(model, {.lr = 0.05, .momentum = 0.5}),
          loader(model, rows(), {.batch_size = 4, .shuffle = true, .seed = 2}) {}
    auto runner(const RunnerOptions& options) { return Runner(model, sgd, loader, mse_loss, options); }
    std::vector<float> weights() {
        model.synchronize();
        return model->fc1.weight->template to_vector<float>();
    }
    Model model;
    SGD sgd;
    Loader<TensorDataset<2>> loader;
};
struct Alone : Training<DataParallel<Net>> {
    Alone() : Training(Devices({Device::cpu(0)})) {}
};

/// Writes down what is called, but for losses, which come later.
struct Diary : RunHook {
    explicit Diary(std::vector<std::string>& notes, std::int64_t every = 0) : notes_(notes), every_(every) {}
    void before_run(Run&) override { notes_.emplace_back("run"); }
    void before_epoch(Run& run) override { notes_.push_back(fmt::format("epoch {}", run.state().epoch)); }
    void before_step(Run& run) override { notes_.push_back(std::to_string(run.state().steps)); }
    std::optional<std::int64_t> next_pause(const Run& run) const override {
        const auto steps = static_cast<std::int64_t>(run.state().steps);
        return every_ > 0 ? std::optional(steps / every_ * every_ + every_) : std::nullopt;
    }
    void at_pause(Run& run) override { notes_.push_back(fmt::format("pause at {}", run.state().batch)); }
    void after_epoch(Run& run) override { notes_.push_back(fmt::format("{} done", run.state().epoch)); }
    void after_run(Run& run) override { notes_.push_back(fmt::format("end after {}", run.state().steps)); }

private:
    std::vector<std::string>& notes_;
    std::int64_t every_;
};

/// Ends the run between steps, after so many.
struct EndAt : RunHook {
    explicit EndAt(std::int64_t step) : step_(step) {}
    std::optional<std::int64_t> next_pause(const Run& run) const override {
        return static_cast<std::int64_t>(run.state().steps) < step_ ? std::optional(step_) : std::nullopt;
    }
    void at_pause(Run& run) override {
        if (static_cast<std::int64_t>(run.state().steps) == step_) run.end();
    }

private:
    std::int64_t step_;
};

std::vector<std::string> called(const RunnerOptions& options, std::int64_t every) {
    Alone training;
    auto runner = training.runner(options);
    std::vector<std::string> notes;
    runner.add(Diary(notes, every));
    runner.run();
    return notes;
}

std::vector<std::string> files_in(const std::filesystem::path& directory) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
}

}  // namespace

TEST_CASE("hooks are called around the run, its epochs and its steps") {
    CHECK(called({.epochs = 2}, 0) == std::vector<std::string>{"run", "epoch 0", "0", "1", "2", "3", "4", "1 done",
                                                               "epoch 1", "5", "6", "7", "8", "9", "2 done",
                                                               "end after 10"});
    CHECK(called({.steps = 7}, 3) == std::vector<std::string>{"run", "epoch 0", "0", "1", "2", "pause at 3", "3", "4",
                                                              "1 done", "epoch 1", "5", "pause at 1", "6", "pause at 2",
                                                              "end after 7"});
    CHECK(called({.epochs = 0}, 3) == std::vector<std::string>{"run", "end after 0"});
    Alone training;
    CHECK(message_of<InvalidArgument>([&] { training.runner({}); }) == "Runner: give a number of epochs or of steps");
}

TEST_CASE("losses come in order, once each, and a hook that hears one can end the run") {
    struct Losses : RunHook {
        explicit Losses(std::vector<StepReport>& steps, std::int64_t last) : steps_(steps), last_(last) {}
        void after_step(Run& run, const StepReport& step) override {
            steps_.push_back(step);
            if (step.step == last_) run.end();
        }
        std::vector<StepReport>& steps_;
        std::int64_t last_;
    };
    for (const std::int64_t last : {-1, 7}) {
        Alone training;
        auto runner = training.runner({.epochs = 4});
        std::vector<StepReport> steps;
        runner.add(Losses(steps, last));
        runner.run();
        for (std::size_t i = 0; i < steps.size(); ++i) {
            CHECK(steps[i].step == static_cast<std::int64_t>(i));
            CHECK(steps[i].epoch == i / batches);
            CHECK(steps[i].rows == 4);
            CHECK(std::isfinite(steps[i].loss));
        }
        CHECK(steps.size() == runner.state().steps);
        CHECK(runner.is_complete() == (last < 0));
        CHECK(runner.stopped() == (last < 0 ? std::nullopt : std::optional(0)));
        CHECK((last < 0 ? steps.size() == 20 : steps.size() >= 8 && steps.size() <= 12));
    }
}

TEST_CASE("a run that was ended and goes on from its checkpoint ends as one that never stopped") {
    const test::TemporaryDirectory place;
    const auto train = [&](std::optional<std::int64_t> end_at, bool goes_on, ScheduleBy by) {
        Alone training;
        ExponentialLR schedule(training.sgd, 0.8);
        auto runner = training.runner({.epochs = 4});
        if (goes_on) runner.go_on_from(load_checkpoint(training.model, training.sgd, place / "net").value());
        runner.add(FollowSchedule(schedule, by));
        if (end_at) runner.add(EndAt(*end_at));
        runner.add(SaveCheckpoints({.file = place / "net"}));
        runner.run();
        CHECK(runner.state().steps == static_cast<std::uint64_t>(end_at.value_or(20)));
        return std::pair(training.weights(), training.sgd.options().lr);
    };
    for (const ScheduleBy by : {ScheduleBy::step, ScheduleBy::epoch}) {
        const auto whole = train({}, false, by);
        CHECK(whole.second == Approx(0.05 * std::pow(0.8, by == ScheduleBy::step ? 19 : 4)));
        for (const std::int64_t end_at : {1, 4, 5, 6, 13}) {
            INFO(end_at);
            const auto part = train(end_at, false, by);
            CHECK(part.first != whole.first);
            CHECK(train({}, true, by) == whole);
        }
    }
}

TEST_CASE("a run goes on with the scale of its loss where it was, on other devices too") {
    const test::TemporaryDirectory place;
    const auto train = [&](std::optional<std::int64_t> end_at, bool goes_on) {
        Alone training;
        GradScaler scaler({.init_scale = 1024, .growth_interval = 3});
        auto runner = training.runner({.epochs = 4, .step = {.scaler = &scaler}});
        if (goes_on) runner.go_on_from(load_checkpoint(training.model, training.sgd, place / "net").value());
        if (end_at) runner.add(EndAt(*end_at));
        runner.add(SaveCheckpoints({.file = place / "net"}));
        runner.run();
        return std::pair(training.weights(), scaler.state());
    };
    const auto whole = train({}, false);
    CHECK(whole.second.at("scale") == 65536);  // 20 steps: six times twice as much
    CHECK(whole.second.at("_growth_tracker") == 2);
    for (const std::int64_t end_at : {1, 4, 9}) {
        CHECK(train(end_at, false).second != whole.second);
        CHECK(train({}, true) == whole);
    }
    GradScaler scaler;
    RunState run;
    CHECK_FALSE(restore_scaler(scaler, run));
    keep_scaler(scaler, run);
    CHECK(restore_scaler(scaler, run));
    run.fields["grad_scaler scale"] = "much";
    CHECK_THAT(message_of<DataError>([&] { restore_scaler(scaler, run); }),
               test::contains("'grad_scaler scale' is 'much'"));
    run.fields.erase("grad_scaler scale");
    CHECK_THAT(message_of<InvalidArgument>([&] { restore_scaler(scaler, run); }),
               test::contains("the state has no number \"scale\""));
    GradScaler without({.enabled = false});
    keep_scaler(without, run);
    CHECK(run.fields.empty());
}

TEST_CASE("a schedule that the checkpoint does not know is brought to where the run is") {
    Alone training;
    StepLR schedule(training.sgd, 2, 0.5);
    auto runner = training.runner({.epochs = 2});
    runner.go_on_from({.epoch = 1, .steps = 5});
    runner.add(FollowSchedule(schedule, ScheduleBy::step));
    runner.run();
    CHECK(training.sgd.options().lr == Approx(0.05 * std::pow(0.5, 9 / 2)));
    Alone other;
    StepLR by_epoch(other.sgd, 2, 0.5);
    auto damaged = other.runner({.epochs = 2});
    damaged.go_on_from({.fields = {{"schedule last_epoch", "many"}}});
    damaged.add(FollowSchedule(by_epoch));
    CHECK_THAT(message_of<DataError>([&] { damaged.run(); }), test::contains("'schedule last_epoch' is 'many'"));
}

TEST_CASE("scores are computed evenly within an epoch, at its end and at the end of the run") {
    const auto evaluated = [](const RunnerOptions& options, int per_epoch) {
        Alone training;
        auto runner = training.runner(options);
        std::vector<std::uint64_t> steps;
        runner.add(Evaluation(
            "score", [&] { return steps.push_back(runner.state().steps), 1.0; }, per_epoch));
        runner.run();
        CHECK(runner.scores().at("score").steps == runner.state().steps);
        return steps;
    };
    using Steps = std::vector<std::uint64_t>;
    CHECK(evaluated({.epochs = 2}, 1) == Steps{5, 10});
    CHECK(evaluated({.epochs = 1}, 2) == Steps{3, 5});
    CHECK(evaluated({.epochs = 1}, 5) == Steps{1, 2, 3, 4, 5});
    CHECK(evaluated({.epochs = 1}, 50) == Steps{1, 2, 3, 4, 5});
    CHECK(evaluated({.steps = 7}, 1) == Steps{5, 7});
    CHECK(evaluated({.epochs = 0}, 3) == Steps{0});
    CHECK(message_of<InvalidArgument>([] {
              Evaluation(
                  "dice", [] { return 0.0; }, 0);
          }) == "Evaluation of dice: 0 times an epoch; give 1 or more");
}

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
    CHECK(std::strtod(best.fields.at("score dice").c_str(), nullptr) == 0.9);
    CHECK(last.steps == 25);
    CHECK(std::strtod(last.fields.at("score dice").c_str(), nullptr) == 0.7);
    CHECK(std::strtod(last.fields.at("best dice").c_str(), nullptr) == 0.9);

    const auto refused = [](const SaveCheckpointsOptions& options) {
        return message_of<InvalidArgument>([&] { SaveCheckpoints bad(options); });
    };
    CHECK_THAT(refused({.file = "net", .keep = 2}), test::contains("put {epoch} or {step} in the name"));
    CHECK_THAT(refused({}), test::contains("no file"));
    CHECK_THAT(refused({.file = "net", .every_steps = -1}), test::contains("every -1 steps"));
    CHECK_THAT(refused({.file = "net", .best = "best"}), test::contains("the name of its score"));
}

TEST_CASE("checkpoints every so many steps; none where the run ends and saves anyway") {
    const test::TemporaryDirectory place;
    Alone training;
    auto runner = training.runner({.epochs = 2});
    std::vector<std::uint64_t> saved;
    SaveCheckpoints& saving = runner.add(SaveCheckpoints({.file = place / "net", .every_steps = 5}));
    saving.on_save = [&](const auto&) { saved.push_back(runner.state().steps); };
    runner.run();
    CHECK(saved == std::vector<std::uint64_t>{5, 10});
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

TEST_CASE("a score that gets no better ends the run, whichever way is better, and after a resume too") {
    const auto epochs_of = [](std::vector<double> scores, int patience, double min_delta, bool higher) {
        Alone training;
        auto runner = training.runner({.epochs = scores.size()});
        runner.add(Evaluation("score", [&] { return scores[runner.state().epoch - 1]; }));
        runner.add(StopEarly("score", patience, min_delta, higher));
        runner.run();
        return runner.state().epoch;
    };
    CHECK(epochs_of({1, 2, 2, 3, 2, 2, 9}, 2, 0, true) == 6);
    CHECK(epochs_of({3, 2, 2, 1, 2, 2, 0}, 2, 0, false) == 6);
    CHECK(epochs_of({1, 1.05, 1.1, 9}, 2, 0.2, true) == 3);
    CHECK(epochs_of({1, 2, 3, 4}, 1, 0, true) == 4);
    Alone training;
    auto runner = training.runner({.epochs = 9});
    runner.go_on_from(
        {.epoch = 3, .steps = 15, .fields = {{"early stop: best score", "5"}, {"early stop: evaluations since", "1"}}});
    runner.add(Evaluation("score", [] { return 4.0; }));
    runner.add(StopEarly("score", 2));
    runner.run();
    CHECK(runner.state().epoch == 4);
    CHECK(message_of<InvalidArgument>([] { StopEarly("score", 0); }) ==
          "StopEarly on score: a patience of 0; give 1 or more");
}

TEST_CASE("a signal ends the run without an evaluation, and it is saved once") {
    const test::TemporaryDirectory place;
    struct Raise : RunHook {
        void after_step(Run&, const StepReport& step) override {
            if (step.step == 6) ::raise(SIGTERM);
        }
    };
    Alone training;
    auto runner = training.runner({.epochs = 100});
    const StopSignals signals;
    runner.stop_on(signals);
    int evaluations = 0, saves = 0;
    runner.add(Raise());
    runner.add(Evaluation(
        "score", [&] { return ++evaluations; }, 1));
    runner.add(SaveCheckpoints({.file = place / "net"})).on_save = [&](const auto&) { ++saves; };
    runner.run();
    CHECK(runner.stopped() == SIGTERM);
    CHECK(runner.state().steps >= 7);
    CHECK(runner.state().steps <= 11);
    CHECK(evaluations <= 2);
    CHECK(saves == 1);
}

TEST_CASE("ranks run alike: one run of two processes has the weights of one process") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              const auto train = [](auto& training, bool end) {
                  ExponentialLR schedule(training.sgd, 0.9);
                  auto runner = training.runner({.epochs = 3});
                  runner.add(FollowSchedule(schedule, ScheduleBy::step));
                  if (end) runner.add(EndAt(7));
                  runner.run();
                  return std::pair(training.weights(), runner.state().steps);
              };
              Training<DistributedDataParallel<Net>> ranks(group), ended(group);
              Alone alone;
              expect(train(ranks, false) == train(alone, false), "other weights");
              expect(train(ended, true).second == 7, "the run did not end after 7 steps");
          }) == "");
}
