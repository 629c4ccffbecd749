// Runner and its hooks: when they are called, and that a resumed run ends like an uninterrupted one.
#include "lockstep/parallel/runner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "lockstep/ops/lr_schedules.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/internal/throughput.h"
#include "lockstep/parallel/run_hooks.h"
#include "lockstep/runtime/stop_signals.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/checkpoints.h"
#include "lockstep/tests/fixtures/ranks.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// Records the calls, except those for losses, which arrive later.
struct Diary : RunHook {
    explicit Diary(std::vector<std::string>& notes, std::int64_t every = 0) : notes_(notes), every_(every) {}
    void before_run(Runner&) override { notes_.emplace_back("run"); }
    void before_epoch(Runner& run) override { notes_.push_back(fmt::format("epoch {}", run.state().epoch)); }
    void before_step(Runner& run) override { notes_.push_back(std::to_string(run.state().steps)); }
    std::optional<std::int64_t> next_pause(const Runner& run) const override {
        const auto steps = static_cast<std::int64_t>(run.state().steps);
        return every_ > 0 ? std::optional(steps / every_ * every_ + every_) : std::nullopt;
    }
    void at_pause(Runner& run) override { notes_.push_back(fmt::format("pause at {}", run.state().batch)); }
    void after_epoch(Runner& run) override { notes_.push_back(fmt::format("{} done", run.state().epoch)); }
    void after_run(Runner& run) override { notes_.push_back(fmt::format("end after {}", run.state().steps)); }

private:
    std::vector<std::string>& notes_;
    std::int64_t every_;
};

std::vector<std::string> called(const RunnerOptions& options, std::int64_t every) {
    SingleTraining training;
    auto runner = training.runner(options);
    std::vector<std::string> notes;
    runner.add(Diary(notes, every));
    runner.run();
    return notes;
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
    SingleTraining training;
    CHECK(message_of<InvalidArgument>([&] { training.runner({}); }) ==
          "Runner: neither epochs nor steps; expected a number of either");
}

TEST_CASE("the rate of training counts completed steps and excludes pauses") {
    Throughput rate;
    rate.resume();
    for (int step = 0; step < 5; ++step)
        if (rate.step()) rate.resume();
    for (int warm_up = 0; warm_up < 2; ++warm_up) rate.done(4);
    CHECK(rate.rows_per_second() == 0);  // three steps are in flight, none of them is complete
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    rate.done(4);
    const double within = rate.rows_per_second();
    CHECK(within > 0);
    CHECK(within <= 4 / 0.02);
    rate.pause();
    const double at_pause = rate.rows_per_second();
    CHECK(at_pause > 0);
    CHECK(at_pause <= within);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    CHECK(rate.rows_per_second() == at_pause);
}

TEST_CASE("each loss is reported once, in order, and a hook can end the run after one") {
    struct Losses : RunHook {
        explicit Losses(std::vector<StepReport>& steps, std::int64_t last) : steps_(steps), last_(last) {}
        void after_step(Runner& run, const StepReport& step) override {
            steps_.push_back(step);
            if (step.step == last_) run.end();
        }
        std::vector<StepReport>& steps_;
        std::int64_t last_;
    };
    for (const std::int64_t last : {-1, 7}) {
        SingleTraining training;
        auto runner = training.runner({.epochs = 4});
        std::vector<StepReport> steps;
        runner.add(Losses(steps, last));
        runner.run();
        for (std::size_t i = 0; i < steps.size(); ++i) {
            CHECK(steps[i].step == static_cast<std::int64_t>(i));
            CHECK(steps[i].epoch == i / runner_batches);
            CHECK(steps[i].rows == 4);
            CHECK(std::isfinite(steps[i].loss));
        }
        CHECK(steps.size() == runner.state().steps);
        CHECK(runner.is_complete() == (last < 0));
        CHECK(runner.stopped() == (last < 0 ? std::nullopt : std::optional(0)));
        CHECK((last < 0 ? steps.size() == 20 : steps.size() >= 8 && steps.size() <= 12));
    }
}

TEST_CASE("a run that resumes from its checkpoint ends like an uninterrupted one") {
    const test::TemporaryDirectory place;
    const auto train = [&](std::optional<std::int64_t> end_at, bool resumes, ScheduleBy by) {
        SingleTraining training;
        ExponentialLR schedule(training.sgd, 0.8);
        auto runner = training.runner({.epochs = 4});
        if (resumes) runner.resume_from(load_checkpoint(training.model, training.sgd, place / "net").value());
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

TEST_CASE("a resumed run continues with its loss scale, also on other devices") {
    const test::TemporaryDirectory place;
    const auto train = [&](std::optional<std::int64_t> end_at, bool resumes) {
        SingleTraining training;
        GradScaler scaler({.init_scale = 1024, .growth_interval = 3});
        auto runner = training.runner({.epochs = 4, .step = {.scaler = &scaler}});
        if (resumes) runner.resume_from(load_checkpoint(training.model, training.sgd, place / "net").value());
        if (end_at) runner.add(EndAt(*end_at));
        runner.add(SaveCheckpoints({.file = place / "net"}));
        runner.run();
        return std::pair(training.weights(), scaler.state());
    };
    const auto whole = train({}, false);
    CHECK(whole.second.at("scale") == 65536);  // 20 steps: doubled six times
    CHECK(whole.second.at("_growth_tracker") == 2);
    for (const std::int64_t end_at : {1, 4, 9}) {
        CHECK(train(end_at, false).second != whole.second);
        CHECK(train({}, true) == whole);
    }
    GradScaler scaler;
    RunState run;
    CHECK_FALSE(restore_scaler(scaler, run));
    store_scaler(scaler, run);
    CHECK(restore_scaler(scaler, run));
    run.fields["grad_scaler scale"] = "much";
    CHECK_THAT(message_of<DataError>([&] { restore_scaler(scaler, run); }),
               test::contains("'grad_scaler scale' is 'much'"));
    run.fields.erase("grad_scaler scale");
    CHECK_THAT(message_of<InvalidArgument>([&] { restore_scaler(scaler, run); }),
               test::contains("the state has no number \"scale\""));
    GradScaler without({.enabled = false});
    store_scaler(without, run);
    CHECK(run.fields.empty());
}

TEST_CASE("a resumed run continues with the rates of its steps") {
    const test::TemporaryDirectory place;
    const auto train = [&](std::optional<std::int64_t> end_at, bool resumes) {
        SingleTraining training;
        AdaScale rates;
        auto runner = training.runner({.epochs = 4, .step = {.rates = &rates}});
        if (resumes) runner.resume_from(load_checkpoint(training.model, training.sgd, place / "net").value());
        if (end_at) runner.add(EndAt(*end_at));
        runner.add(SaveCheckpoints({.file = place / "net"}));
        runner.run();
        return std::tuple(training.weights(), training.sgd.options().lr, rates.state());
    };
    const auto whole = train({}, false);
    CHECK(std::get<1>(whole) > 0.05);
    for (const std::int64_t end_at : {1, 4, 9}) {
        CHECK(train(end_at, false) != whole);
        CHECK(train({}, true) == whole);
    }
}

TEST_CASE("a schedule without state in the checkpoint advances to the run's position") {
    SingleTraining training;
    StepLR schedule(training.sgd, 2, 0.5);
    auto runner = training.runner({.epochs = 2});
    runner.resume_from({.epoch = 1, .steps = 5});
    runner.add(FollowSchedule(schedule, ScheduleBy::step));
    runner.run();
    CHECK(training.sgd.options().lr == Approx(0.05 * std::pow(0.5, 9 / 2)));
    struct Rates : RunHook {
        explicit Rates(std::vector<double>& rates) : rates_(rates) {}
        void before_epoch(Runner& run) override { rates_.push_back(run.optimizer().lr()); }
        std::vector<double>& rates_;
    };
    SingleTraining late;
    ExponentialLR once_an_epoch(late.sgd, 0.5);
    auto going_on = late.runner({.epochs = 4});
    going_on.resume_from({.epoch = 2, .steps = 10});
    going_on.add(FollowSchedule(once_an_epoch));
    std::vector<double> rates;
    going_on.add(Rates(rates));
    going_on.run();
    CHECK(rates == std::vector<double>{0.05 / 4, 0.05 / 8});
    SingleTraining other;
    StepLR by_epoch(other.sgd, 2, 0.5);
    auto damaged = other.runner({.epochs = 2});
    damaged.resume_from({.fields = {{"schedule last_epoch", "many"}}});
    damaged.add(FollowSchedule(by_epoch));
    CHECK_THAT(message_of<DataError>([&] { damaged.run(); }), test::contains("'schedule last_epoch' is 'many'"));
}

TEST_CASE("scores are computed evenly within an epoch, at its end and at the end of the run") {
    const auto evaluated = [](const RunnerOptions& options, int per_epoch) {
        SingleTraining training;
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
          }) == "Evaluation of dice: 0 times an epoch; expected 1 or more");
}

TEST_CASE("a score that stops improving ends the run, in either direction, and after a resume") {
    const auto epochs_of = [](std::vector<double> scores, int patience, double min_delta, bool higher) {
        SingleTraining training;
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
    SingleTraining training;
    auto runner = training.runner({.epochs = 9});
    runner.resume_from(
        {.epoch = 3, .steps = 15, .fields = {{"early stop: best score", "5"}, {"early stop: evaluations since", "1"}}});
    runner.add(Evaluation("score", [] { return 4.0; }));
    runner.add(StopEarly("score", 2));
    runner.run();
    CHECK(runner.state().epoch == 4);
    CHECK(message_of<InvalidArgument>([] { StopEarly("score", 0); }) ==
          "StopEarly on score: a patience of 0; expected 1 or more");
}

TEST_CASE("a signal ends the run without an evaluation, and the run is saved once") {
    const test::TemporaryDirectory place;
    SingleTraining training;
    auto runner = training.runner({.epochs = 100});
    const StopSignals signals;
    runner.stop_on(signals);
    int evaluations = 0, saves = 0;
    runner.add(RaiseAt(6));
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
              RunnerTraining<DistributedDataParallel<DropoutNet>> ranks(group), ended(group);
              SingleTraining alone;
              expect(train(ranks, false) == train(alone, false), "other weights");
              expect(train(ended, true).second == 7, "the run did not end after 7 steps");
          }) == "");
}

TEST_CASE("a hook logs every step, and scores and rates when they are computed") {
    const test::TemporaryDirectory place;
    {
        SingleTraining training;
        EventLog log(place.path(), {.name = "run"});
        ExponentialLR schedule(training.sgd, 0.5);
        auto runner = training.runner({.epochs = 2});
        runner.add(Evaluation(
            "test score", [&] { return static_cast<double>(runner.state().steps); }, 2));
        runner.add(LogRun(log));
        runner.add(FollowSchedule(schedule));
        runner.run();
    }
    std::vector<std::string> scores;
    int steps = 0;
    std::istringstream lines(test::get_bytes(place / "run.jsonl"));
    for (std::string line; std::getline(lines, line);) {
        if (line.find("\"loss\"") == std::string::npos) {
            scores.push_back(line);
            continue;
        }
        CHECK_THAT(line,
                   test::contains(fmt::format("{{\"step\":{},\"epoch\":{},\"rows\":4,\"loss\":", steps, steps / 5)));
        ++steps;
    }
    CHECK(steps == 10);
    CHECK(scores == std::vector<std::string>{R"({"step":2,"epoch":0,"test_score":3.0,"lr":0.05})",
                                             R"({"step":4,"epoch":1,"test_score":5.0,"lr":0.05})",
                                             R"({"step":7,"epoch":1,"test_score":8.0,"lr":0.025})",
                                             R"({"step":9,"epoch":2,"test_score":10.0,"lr":0.025})"});
}

TEST_CASE("without evaluations the log has the rate of every epoch, and a sampler gets the epoch") {
    const test::TemporaryDirectory place;
    struct Heard {
        std::vector<std::int64_t> epochs;
        void set_epoch(std::int64_t epoch) { epochs.push_back(epoch); }
    } sampler;
    {
        SingleTraining training;
        EventLog log(place.path(), {.name = "run"});
        auto runner = training.runner({.epochs = 4});
        runner.resume_from({.epoch = 1, .batch = 3, .batch_size = 4, .steps = 8});
        runner.add(SetSamplerEpoch(sampler));
        runner.add(LogRun(log));
        runner.run();
    }
    CHECK(sampler.epochs == std::vector<std::int64_t>{1, 2, 3});
    const std::string text = test::get_bytes(place / "run.jsonl");
    for (const char* line : {R"({"step":9,"epoch":2,"lr":0.05})", R"({"step":14,"epoch":3,"lr":0.05})",
                             R"({"step":19,"epoch":4,"lr":0.05})"})
        CHECK_THAT(text, test::contains(line));
}

TEST_CASE("a hook may add others during the run") {
    struct Count : RunHook {
        explicit Count(int& steps) : steps_(steps) {}
        void after_step(Runner&, const StepReport&) override { ++steps_; }
        int& steps_;
    };
    struct AddAt : RunHook {
        AddAt(std::int64_t step, std::function<void()> add) : step_(step), add_(std::move(add)) {}
        void after_step(Runner&, const StepReport& step) override {
            if (step.step == step_) add_();
        }
        void at_pause(Runner&) override { add_(); }
        void after_epoch(Runner&) override { add_(); }
        std::int64_t step_;
        std::function<void()> add_;
    };
    SingleTraining training;
    auto runner = training.runner({.epochs = 2});
    int counted = 0, added = 0;
    runner.add(AddAt(3, [&] {
        for (int i = 0; i < 20; ++i) runner.add(Count(counted));  // the vector moves
        ++added;
    }));
    runner.run();
    CHECK(added == 3);                         // step 3 and two epochs
    CHECK(counted == 20 * (10 - 4) + 20 * 5);  // from step 4 on, and the second epoch
}

TEST_CASE("a step is reported with the rates that it used") {
    struct Reports : RunHook {
        explicit Reports(std::vector<StepReport>& steps) : steps_(steps) {}
        void after_step(Runner&, const StepReport& step) override { steps_.push_back(step); }
        std::vector<StepReport>& steps_;
    };
    SingleTraining training;
    ExponentialLR schedule(training.sgd, 0.5);
    auto runner = training.runner({.steps = 8});
    runner.add(FollowSchedule(schedule, ScheduleBy::step));
    std::vector<StepReport> steps;
    runner.add(Reports(steps));
    runner.run();
    REQUIRE(steps.size() == 8);
    for (std::size_t i = 0; i < steps.size(); ++i) {
        CHECK(steps[i].lr == Approx(0.05 * std::pow(0.5, i)));
        CHECK(steps[i].momentum == 0.5);
        CHECK(steps[i].gain == 1);
    }
    SingleTraining scaled;
    AdaScale rates;
    auto adaptive = scaled.runner({.steps = 8, .step = {.rates = &rates}});
    std::vector<StepReport> measured;
    adaptive.add(Reports(measured));
    adaptive.run();
    REQUIRE(measured.size() == 8);
    CHECK(measured[0].gain == 1);
    bool has_grown = false;
    for (const StepReport& step : measured) {
        CHECK(step.lr == Approx(0.05 * step.gain));
        has_grown = has_grown || step.gain > 1;
    }
    CHECK(has_grown);
}

TEST_CASE("two hooks that set the learning rate are rejected, except chained schedules") {
    const auto refused = [](const std::function<void(SingleTraining&)>& run) {
        SingleTraining training;
        return message_of<InvalidArgument>([&] { run(training); });
    };
    CHECK(refused([](SingleTraining& training) {
              AdaScale rates;
              StepLR schedule(training.sgd, 2);
              auto runner = training.runner({.steps = 2, .step = {.rates = &rates}});
              runner.add(FollowSchedule(schedule));
              runner.run();
          }) == "Runner: AdaScale and FollowSchedule 'schedule' both set the learning rate; expected one of them");
    CHECK(refused([](SingleTraining& training) {
              YellowFin rates;
              ExponentialLR schedule(training.sgd, 0.5);
              auto runner = training.runner({.steps = 2, .step = {.rates = &rates}});
              runner.add(FollowSchedule(schedule, ScheduleBy::step, "decay"));
              runner.run();
          }) == "Runner: YellowFin and FollowSchedule 'decay' both set the learning rate; expected one of them");
    CHECK(refused([](SingleTraining& training) {
              StepLR one(training.sgd, 2), two(training.sgd, 3);
              auto runner = training.runner({.steps = 2});
              runner.add(FollowSchedule(one));
              runner.add(FollowSchedule(two));
              runner.run();
          }) == "Runner: FollowSchedule 'schedule' is repeated; expected a unique name for each rate setter");
    SingleTraining training;
    ExponentialLR one(training.sgd, 0.5);
    MultiStepLR two(training.sgd, {1});
    auto runner = training.runner({.epochs = 2});
    runner.add(FollowSchedule(one, ScheduleBy::epoch, "one"));
    runner.add(FollowSchedule(two, ScheduleBy::epoch, "two"));
    runner.run();
    CHECK(training.sgd.lr() == Approx(0.05 * 0.25 * 0.1));
}

TEST_CASE("a score that no evaluation computes is an error that lists the computed ones") {
    const test::TemporaryDirectory place;
    const auto message = [&](const auto& add) {
        SingleTraining training;
        auto runner = training.runner({.epochs = 3});
        runner.add(Evaluation(
            "dice", [] { return 1.0; }, 2));
        runner.add(Evaluation("accuracy", [] { return 1.0; }));
        add(runner);
        const std::string text = message_of<InvalidArgument>([&] { runner.run(); });
        CHECK(runner.state().steps == 5);
        return text;
    };
    CHECK(message([&](auto& runner) {
              runner.add(SaveCheckpoints({.file = place / "net", .best = place / "best", .score = "dcie"}));
          }) == "SaveCheckpoints: score 'dcie' is not known; expected one of 'accuracy', 'dice'");
    CHECK(message([&](auto& runner) { runner.add(StopEarly("Accuracy", 3)); }) ==
          "StopEarly: score 'Accuracy' is not known; expected one of 'accuracy', 'dice'");

    const auto without_evaluation = [&](const auto& add) {
        SingleTraining training;
        auto runner = training.runner({.epochs = 3});
        add(runner);
        return message_of<InvalidArgument>([&] { runner.run(); });
    };
    CHECK(without_evaluation([&](auto& runner) {
              runner.add(SaveCheckpoints({.file = place / "net", .best = place / "best", .score = "dice"}));
          }) == "SaveCheckpoints: score 'dice' was not computed in this epoch; expected an Evaluation 'dice'");
    CHECK(without_evaluation([&](auto& runner) { runner.add(StopEarly("dice", 3)); }) ==
          "StopEarly: score 'dice' was not computed in this epoch; expected an Evaluation 'dice'");
}

TEST_CASE("a run that ended early ends at once when it is resumed") {
    const test::TemporaryDirectory place;
    const auto train = [&](bool resumes, int patience) {
        SingleTraining training;
        auto runner = training.runner({.epochs = 9});
        if (resumes) runner.resume_from(load_checkpoint(training.model, training.sgd, place / "net").value());
        int evaluated = 0;
        runner.add(Evaluation("score", [&] { return ++evaluated, 1.0; }));
        runner.add(StopEarly("score", patience));
        runner.add(SaveCheckpoints({.file = place / "net"}));
        runner.run();
        return std::pair(runner.state().steps, evaluated);
    };
    CHECK(train(false, 2) == std::pair(std::uint64_t{15}, 3));
    CHECK(train(true, 2) == std::pair(std::uint64_t{15}, 0));
    CHECK(train(true, 4) == std::pair(std::uint64_t{25}, 2));  // with more patience it continues
}

TEST_CASE("a run resumes only with the facts that determine its result, except those that may change") {
    const test::TemporaryDirectory place;
    const auto train = [&](RunnerOptions options, std::int64_t batch_size, std::uint64_t seed, bool resumes,
                           std::uint64_t epochs) {
        SingleTraining training;
        Loader<TensorDataset<2>> loader(training.model, runner_rows(),
                                        {.batch_size = batch_size, .shuffle = true, .seed = seed});
        options.epochs = epochs;
        Runner runner(training.model, training.sgd, loader, mse_loss, options);
        if (resumes) runner.resume_from(load_checkpoint(training.model, training.sgd, place / "net").value());
        runner.add(SaveCheckpoints({.file = place / "net"}));
        runner.run();
    };
    const auto refused = [&](const RunnerOptions& options, std::int64_t batch_size = 4, std::uint64_t seed = 2) {
        return message_of<InvalidArgument>([&] { train(options, batch_size, seed, true, 2); });
    };
    const std::map<std::string, std::string> facts{{"scale", "0.5"}, {"flip", "true"}};
    train({.facts = facts}, 4, 2, false, 1);
    CHECK(refused({.facts = {{"scale", "0.25"}, {"flip", "false"}}}) ==
          "Runner: flip is 'false', and the run has 'true'; scale is '0.25', and the run has '0.5'; expected the same, "
          "or "
          "the name in may_change");
    CHECK_THAT(refused({.facts = facts}, 2), test::contains("batch-size is '2', and the run has '4'"));
    CHECK_THAT(refused({.facts = facts}, 4, 3), test::contains("seed is '3', and the run has '2'"));
    CHECK_THAT(refused({.facts = facts, .step = {.accumulation_steps = 2}}),
               test::contains("accumulation-steps is '2', and the run has '1'"));
    CHECK_THAT(refused({.facts = facts, .step = {.clip = {ClipGradNorm{.max_norm = 1}}}}),
               test::contains("clip is 'norm 1 of order 2 in group -1', and the run has 'none'"));
    CHECK_THAT(refused({.facts = facts, .may_change = {"sclae"}}), test::contains("may_change names 'sclae'"));
    train({.facts = {{"scale", "0.25"}, {"flip", "true"}}, .may_change = {"scale"}}, 4, 2, true, 2);
    CHECK_THAT(refused({.facts = facts}), test::contains("scale is '0.5', and the run has '0.25'"));
    // A state of an earlier version has no facts.
    SingleTraining old;
    auto runner = old.runner({.epochs = 2, .facts = facts});
    runner.resume_from({.epoch = 1, .steps = 5});
    runner.run();
    CHECK(runner.state().fields.at("fact scale") == "0.5");
}

TEST_CASE("a run resumes only with the loader, engine and step options that determine its result") {
    const test::TemporaryDirectory place;
    struct Setup {
        EngineOptions engine{.shards = 2};
        bool drop_last = false, scales = false, skips = false;
        std::vector<std::string> may_change = {};
    };
    const auto train = [&](const Setup& setup, bool resumes) {
        manual_seed(1);
        DataParallel model(DropoutNet{}, Devices({Device::cpu(0)}), setup.engine);
        SGD sgd(model, {.lr = 0.05});
        Loader loader(model, runner_rows(), {.batch_size = 4, .drop_last = setup.drop_last});
        GradScaler scaler({.enabled = setup.scales});
        Runner runner(model, sgd, loader, mse_loss,
                      {.epochs = resumes ? 2U : 1U,
                       .may_change = setup.may_change,
                       .step = {.skip_nonfinite = setup.skips, .scaler = &scaler}});
        if (resumes) runner.resume_from(load_checkpoint(model, sgd, place / "net").value());
        if (!resumes) runner.add(SaveCheckpoints({.file = place / "net"}));
        runner.run();
    };
    train({}, false);
    struct Other {
        Setup setup;
        std::string text;
        std::vector<std::string> names;
    };
    const std::vector<Other> others{
        {{.engine = {.shards = 4}}, "shards is '4', and the run has '2'", {"shards"}},
        {{.engine = {}}, "shards is '1, one per device', and the run has '2'", {"shards"}},
        {{.engine = {.shards = 2, .allow_tf32 = true}}, "allow-tf32 is 'on', and the run has 'off'", {"allow-tf32"}},
        {{.engine = {.shards = 2, .autocast = DType::bf16}}, "amp is 'bf16', and the run has 'off'", {"amp"}},
        {{.drop_last = true}, "drop-last is 'on', and the run has 'off'", {"drop-last"}},
        {{.scales = true}, "scaler is 'on', and the run has 'off'", {"scaler"}},
        {{.skips = true}, "skip-nonfinite is 'on', and the run has 'off'", {"skip-nonfinite"}},
    };
    for (auto [setup, text, names] : others) {
        CHECK(message_of<InvalidArgument>([&] { train(setup, true); }) ==
              "Runner: " + text + "; expected the same, or the name in may_change");
        setup.may_change = names;
        train(setup, true);
    }
    // These give the same bits.
    train({.engine = {.shards = 2, .deterministic = true, .reduction = ReductionMode::slice_wise}}, true);
}

TEST_CASE("ranks resume only with the reduction that determines the result") {
    const test::TemporaryDirectory place;
    CHECK(lockstep::test::on_ranks(2, [&](ProcessGroup& group) {
              const auto train = [&](ReductionMode reduction, bool resumes, const RunnerOptions& options) {
                  manual_seed(1);
                  DistributedDataParallel<DropoutNet> model(DropoutNet{}, group, {.shards = 2, .reduction = reduction});
                  SGD sgd(model, {.lr = 0.05});
                  Loader loader(model, runner_rows(), {.batch_size = 4});
                  Runner runner(model, sgd, loader, mse_loss, options);
                  if (resumes) runner.resume_from(load_checkpoint(model, sgd, place / "net").value());
                  runner.add(SaveCheckpoints({.file = place / "net"}));
                  runner.run();
              };
              train(ReductionMode::root, false, {.epochs = 1});
              expect_throws<InvalidArgument>("Runner: reduction is 'fast', and the run has 'tree'; expected the same",
                                             [&] { train(ReductionMode::fast, true, {.epochs = 2}); });
              train(ReductionMode::fast, true, {.epochs = 2, .may_change = {"reduction"}});
              expect_throws<InvalidArgument>("Runner: reduction is 'tree', and the run has 'fast'",
                                             [&] { train(ReductionMode::root, true, {.epochs = 3}); });
          }) == "");
}

TEST_CASE("a run without deterministic results does not continue one that has them") {
    const test::TemporaryDirectory place;
    const auto train = [&](const EngineOptions& engine, bool resumes) {
        DataParallel model(DropoutNet{}, Devices({Device::cpu(0)}), engine);
        SGD sgd(model, {.lr = 0.05});
        Loader loader(model, runner_rows(), {.batch_size = 4});
        Runner runner(model, sgd, loader, mse_loss, {.epochs = resumes ? 2U : 1U});
        if (resumes) runner.resume_from(load_checkpoint(model, sgd, place / "net").value());
        if (!resumes) runner.add(SaveCheckpoints({.file = place / "net"}));
        runner.run();
    };
    train({.deterministic = true}, false);
    CHECK_THAT(message_of<InvalidArgument>([&] { train({}, true); }),
               test::contains("deterministic is 'off', and the run has 'on'; expected the same"));
    train({.shards = 1}, true);  // implies it
    train({}, false);
    CHECK_THAT(message_of<InvalidArgument>([&] { train({.deterministic = true}, true); }),
               test::contains("deterministic is 'on', and the run has 'off'; expected the same"));
    train({.shards = 1}, false);
    train({.shards = 1, .deterministic = true}, true);
}

TEST_CASE("the number of shards may change if it is one per device before and after") {
    const auto changes = [](const std::string& before, const std::string& now) {
        return changed_facts({.fields = {{"fact shards", before}}}, {{"shards", now}}).size();
    };
    CHECK(changes("2, one per device", "4, one per device") == 0);
    CHECK(changes("2, one per device", "2") == 0);
    CHECK(changes("2", "2, one per device") == 0);
    CHECK(changes("2, one per device", "4") == 1);
    CHECK(changes("2", "4, one per device") == 1);
    CHECK(changes("2", "20") == 1);
    CHECK(changed_facts({.fields = {{"fact clip", "a, b"}}}, {{"clip", "a, c"}}).size() == 1);
}

TEST_CASE("accuracy restores every module's mode, also after an exception") {
    struct Rows {
        std::int64_t broken;
        std::int64_t size() const { return 8; }
        std::tuple<Tensor, Tensor> get(std::int64_t row) const {
            if (row == broken) throw DataError("row " + std::to_string(row) + " is broken");
            return {Tensor::from(std::vector<float>(6, 1.0F), {6}),
                    Tensor::from(std::vector<std::int64_t>{0}, Shape{})};
        }
    };
    SingleTraining training;
    Loader<Rows> good(training.model, Rows{-1}, {.batch_size = 4}), bad(training.model, Rows{6}, {.batch_size = 4});
    for (const bool mode : {true, false}) {
        training.model.train(mode);
        const double share = accuracy(training.model, good);
        CHECK((share == 0 || share == 1));
        CHECK(training.model->drop.training == mode);
        CHECK_THROWS_AS(accuracy(training.model, bad), DataError);
        CHECK(training.model->drop.training == mode);
    }
}
