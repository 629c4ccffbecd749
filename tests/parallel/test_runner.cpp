// Runner and its hooks: when they are called, and what they are told.
#include "lockstep/parallel/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/ops/adaptive_rates.h"
#include "lockstep/ops/lr_schedules.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/internal/throughput.h"
#include "lockstep/parallel/run_hooks.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/checkpoints.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"
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
    CHECK(message_of<InvalidArgument>([] { SingleTraining().runner({.steps = -1}); }) ==
          "Runner: -1 steps; expected 0 or more");
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

TEST_CASE("a hook that runs or resumes its own run is rejected") {
    struct Calls : RunHook {
        explicit Calls(std::function<void(Runner&)> call) : call_(std::move(call)) {}
        void after_epoch(Runner& run) override { call_(run); }
        std::function<void(Runner&)> call_;
    };
    for (const bool resumes : {false, true}) {
        SingleTraining training;
        auto runner = training.runner({.epochs = 2});
        bool misuse = true;
        runner.add(Calls([&](Runner& run) {
            if (misuse && resumes) run.resume_from(RunState());
            if (misuse) run.run();
        }));
        CHECK(message_of<InvalidArgument>([&] { runner.run(); }) ==
              (resumes ? "Runner: resume_from was called by a hook of this run; expected a call before run"
                       : "Runner: run was called by a hook of this run; expected a call after its end"));
        misuse = false;
        runner.run();
        CHECK(runner.state().steps == 10);
    }
}

TEST_CASE("a hook that saves while steps are in flight or before_save runs is rejected") {
    struct Saves : RunHook {
        explicit Saves(std::filesystem::path to) : file(std::move(to)) {}
        void before_save(Runner& run) override {
            CHECK_THAT(message_of<InvalidArgument>([&] { run.save(file); }),
                       contains("save was called in before_save"));
            CHECK_THAT(message_of<InvalidArgument>([&] { run.save(writer, {file}); }), contains("in before_save"));
        }
        void after_step(Runner& run, const StepReport&) override {
            CHECK_THAT(message_of<InvalidArgument>([&] { run.save(file); }), contains("save was called in after_step"));
            CHECK_THAT(message_of<InvalidArgument>([&] { run.save(writer, {file}); }), contains("in after_step"));
        }
        void before_step(Runner& run) override {
            if (run.state().steps == 7) run.save(file);
        }
        std::filesystem::path file;
        CheckpointWriter writer;
    };
    const TemporaryDirectory place;
    SingleTraining whole;
    auto runner = whole.runner({.epochs = 3});
    runner.add(Saves(place / "net"));
    runner.run();
    SingleTraining resumed;
    auto second = resumed.runner({.epochs = 3});
    const RunState state = load_checkpoint(resumed.model, resumed.sgd, place / "net").value();
    CHECK(state.steps == 7);
    second.resume_from(state);
    second.run();
    CHECK(resumed.weights() == whole.weights());
}

TEST_CASE("a run whose hook threw continues where it ended when it is called again") {
    SingleTraining whole;
    whole.runner({.epochs = 3}).run();
    for (const bool after : {true, false})
        for (const std::int64_t at : {0, 4, 6, 13, 14}) {
            CAPTURE(after, at);
            struct Throws : RunHook {
                Throws(std::int64_t step, bool reported) : at(step), after(reported) {}
                void after_step(Runner& run, const StepReport& step) override {
                    CHECK(static_cast<std::int64_t>(run.state().steps) > step.step);
                    if (after && step.step == at) throw std::runtime_error("planted");
                }
                void before_step(Runner& run) override {
                    if (!after && static_cast<std::int64_t>(run.state().steps) == at)
                        if (!std::exchange(thrown, true)) throw std::runtime_error("planted");
                }
                std::int64_t at;
                bool after, thrown = false;
            };
            SingleTraining training;
            auto runner = training.runner({.epochs = 3});
            runner.add(Throws(at, after));
            CHECK_THROWS_WITH(runner.run(), "planted");
            CHECK(training.model.engine().steps_done() == runner.state().steps);
            runner.run();
            CHECK(training.model.engine().steps_done() == 15);
            CHECK(training.weights() == whole.weights());
        }
}

TEST_CASE("a hook that asks for a pause in the past is rejected instead of being called for ever") {
    struct PausesAt : RunHook {
        explicit PausesAt(std::int64_t step) : at(step) {}
        std::optional<std::int64_t> next_pause(const Runner&) const override { return at; }
        std::int64_t at;
    };
    for (const std::int64_t at : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{3}}) {
        SingleTraining training;
        auto runner = training.runner({.epochs = 3});
        runner.add(PausesAt(at));
        CHECK_THAT(message_of<InvalidArgument>([&] { runner.run(); }),
                   contains(fmt::format("next_pause of a hook returned {} after {} steps", at,
                                        std::max(std::int64_t{0}, at))));
    }
    SingleTraining training;
    auto runner = training.runner({.epochs = 3});
    runner.add(PausesAt((std::numeric_limits<std::int64_t>::max)()));
    CHECK_NOTHROW(runner.run());
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
