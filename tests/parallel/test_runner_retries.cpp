// Runs that are continued after an error of a step or a hook, or after a stop: a second call of run().
#include <fmt/format.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/ops/adaptive_rates.h"
#include "lockstep/ops/lr_schedules.h"
#include "lockstep/parallel/run_hooks.h"
#include "lockstep/parallel/runner.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/checkpoints.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

constexpr std::uint64_t retried_epochs = 4;

/// A training whose rows can be damaged and repaired.
struct Repairable {
    Repairable()
        : model((manual_seed(1), DropoutNet{}), Devices({Device::cpu(0)}), EngineOptions{.shards = 2}),
          sgd(model, {.lr = 0.05, .momentum = 0.5}),
          loader(model, TensorDataset(inputs, targets), {.batch_size = 4, .shuffle = true, .seed = 2}) {}
    std::vector<float> weights() {
        model.synchronize();
        return model->fc1.weight->to_vector<float>();
    }
    Tensor inputs = (manual_seed(3), Tensor::randn({4 * runner_batches, 6}));
    Tensor targets = Tensor::randn({4 * runner_batches, 2});
    DataParallel<DropoutNet> model;
    SGD sgd;
    Loader<TensorDataset<2>> loader;
};

/// Calls a function at every event of a hook, with the name of the event.
struct AtEvents : RunHook {
    using Call = std::function<void(const std::string&, Runner&)>;
    explicit AtEvents(Call to) : call(std::move(to)) {}
    void before_save(Runner& run) override { call("before_save", run); }
    void before_run(Runner& run) override { call("before_run", run); }
    void before_epoch(Runner& run) override { call("before_epoch", run); }
    void before_step(Runner& run) override { call("before_step", run); }
    void after_step(Runner& run, const StepReport&) override { call("after_step", run); }
    void evaluate(Runner& run) override { call("evaluate", run); }
    void at_pause(Runner& run) override { call("at_pause", run); }
    void after_epoch(Runner& run) override { call("after_epoch", run); }
    void after_run(Runner& run) override { call("after_run", run); }
    void save_if_due(Runner& run) override { call("save_if_due", run); }
    Call call;
};

/// A run with hooks that have state, and its directory.
struct HookedRun {
    HookedRun(const std::filesystem::path& directory, const AtEvents::Call& call)
        : by_step(training.sgd, 0.9),
          cycle(training.sgd, 3, 0.5),
          plateau(training.sgd, {.factor = 0.5, .patience = 1}),
          runner(training.model, training.sgd, training.loader, mse_loss, {.epochs = retried_epochs}) {
        runner.add(Evaluation(
            "score", [this] { return static_cast<double>(7 * runner.state().steps % 9); }, 2));
        runner.add(FollowSchedule(by_step, ScheduleBy::step, "first"));
        runner.add(FollowSchedule(cycle, ScheduleBy::step, "second"));
        runner.add(FollowPlateau(plateau, "score"));
        runner.add(StopEarly("score", 100));
        runner.add(AtEvents(call));
        runner.add(SaveCheckpoints({.file = directory / "net{step}",
                                    .every_steps = 3,
                                    .keep = 3,
                                    .best = directory / "best",
                                    .score = "score"}));
    }
    Repairable training;
    ExponentialLR by_step;
    StepLR cycle;
    ReduceLROnPlateau plateau;
    Runner runner;
};

std::map<std::string, std::string> files_in(const TemporaryDirectory& place) {
    std::map<std::string, std::string> files;
    for (const std::string& name : place.names()) files[name] = get_bytes(place / name);
    return files;
}

struct Whole {
    TemporaryDirectory place;
    std::vector<float> weights;
    std::map<std::string, std::string> files;
    Whole() {
        HookedRun whole(place.path(), [](const std::string&, Runner&) {});
        whole.runner.run();
        weights = whole.training.weights();
        files = files_in(place);
    }
};

}  // namespace

TEST_CASE("a run whose step was refused is at that step, saves it and continues there") {
    const Whole whole;
    for (const std::int64_t epoch : {0, 2})
        for (const std::int64_t row : {0, 3, 7, 10, 16, 19}) {
            CAPTURE(epoch, row);
            const TemporaryDirectory place;
            Tensor input;
            float before = 0;
            bool damages = true;
            HookedRun hooked(place.path(), [&](const std::string& event, Runner& run) {
                if (event != "before_epoch" || run.state().epoch != static_cast<std::uint64_t>(epoch)) return;
                if (std::exchange(damages, false))
                    before = std::exchange(input.data<float>()[6 * row], std::numeric_limits<float>::quiet_NaN());
            });
            input = hooked.training.inputs;
            std::int64_t refused = -1;
            for (int trial = 0; trial < 2; ++trial) {  // the second one repeats the step
                try {
                    hooked.runner.run();
                } catch (const StepError& error) {
                    refused = error.step();
                }
                CHECK(refused / runner_batches == epoch);
                CHECK(hooked.runner.state().steps == static_cast<std::uint64_t>(refused));
                CHECK(hooked.runner.state().batch == refused % runner_batches);
                CHECK(hooked.training.model.engine().steps_done() == static_cast<std::uint64_t>(refused));
            }
            hooked.runner.save(place / "refused");
            input.data<float>()[6 * row] = before;
            {
                const TemporaryDirectory elsewhere;
                HookedRun resumed(elsewhere.path(), [](const std::string&, Runner&) {});
                const auto state =
                    load_checkpoint(resumed.training.model, resumed.training.sgd, place / "refused").value();
                resumed.runner.resume_from(state);
                resumed.runner.run();
                CHECK(resumed.training.weights() == whole.weights);
            }
            for (const char* name : {"refused", "refused.resume"}) std::filesystem::remove(place / name);
            hooked.runner.run();
            CHECK(hooked.training.weights() == whole.weights);
            CHECK((files_in(place) == whole.files));
        }
}

TEST_CASE("a run whose hook threw at any event repeats the calls and leaves the files of one that did not") {
    const Whole whole;
    for (const char* where : {"before_run", "before_epoch", "before_step", "after_step", "evaluate", "at_pause",
                              "after_epoch", "save_if_due", "before_save", "after_run"})
        for (const int number : {1, 2, 4}) {
            CAPTURE(where, number);
            const TemporaryDirectory place;
            int calls = 0;
            HookedRun hooked(place.path(), [&](const std::string& event, const Runner&) {
                if (event == where && ++calls == number) throw std::runtime_error("planted");
            });
            int thrown = 0;
            for (bool ends = false; !ends;) {
                try {
                    hooked.runner.run();
                    ends = true;
                } catch (const std::runtime_error& error) {
                    CHECK(std::string(error.what()) == "planted");
                    ++thrown;
                }
                REQUIRE(thrown <= 1);
            }
            CHECK(hooked.training.weights() == whole.weights);
            CHECK((files_in(place) == whole.files));
        }
}

TEST_CASE("a run whose dataset threw continues where it ended") {
    struct Breaks {
        Tensor inputs, targets;
        std::int64_t bad = 0;
        std::shared_ptr<std::atomic<bool>> broken;
        std::int64_t size() const { return inputs.size(0); }
        std::tuple<Tensor, Tensor> get(std::int64_t row) const {
            if (row == bad && *broken) throw std::runtime_error("planted");
            return {inputs.select(0, row), targets.select(0, row)};
        }
    };
    const auto train = [](std::int64_t bad, std::int64_t from_step, int workers) {
        Repairable training;
        auto broken = std::make_shared<std::atomic<bool>>(false);
        bool has_broken = false;
        Loader loader(training.model, Breaks{training.inputs, training.targets, bad, broken},
                      {.batch_size = 4, .shuffle = true, .seed = 2, .workers = workers});
        ExponentialLR schedule(training.sgd, 0.9);
        Runner runner(training.model, training.sgd, loader, mse_loss, {.epochs = 3});
        runner.add(FollowSchedule(schedule, ScheduleBy::step));
        runner.add(AtEvents([&](const std::string& event, const Runner& run) {
            if (event == "before_epoch" && static_cast<std::int64_t>(run.state().steps) == from_step)
                *broken = !std::exchange(has_broken, true);
        }));
        if (from_step >= 0) {
            CHECK_THAT(message_of<std::exception>([&] { runner.run(); }), contains("planted"));
            CHECK(training.model.engine().steps_done() == runner.state().steps);
            CHECK(static_cast<std::int64_t>(runner.state().steps) - from_step < runner_batches);
            *broken = false;
        }
        runner.run();
        return training.weights();
    };
    const auto whole = train(0, -1, 1);
    for (const std::int64_t from_step : {0, 5})
        for (const std::int64_t bad : {0, 9, 18})
            for (const int workers : {0, 1, 3}) CHECK(train(bad, from_step, workers) == whole);
}

TEST_CASE("adaptive rates continue after a refused step with the bits of a run without one") {
    const auto train = [](bool damages) {
        Repairable training;
        AdaScale rates;
        Runner runner(training.model, training.sgd, training.loader, mse_loss,
                      {.epochs = 3, .step = {.rates = &rates}});
        Tensor input = training.inputs;
        const float before = input.data<float>()[0];
        if (damages) {
            input.data<float>()[0] = std::numeric_limits<float>::infinity();
            CHECK_THROWS_AS(runner.run(), StepError);
            input.data<float>()[0] = before;
        }
        runner.run();
        return std::pair(training.weights(), rates.scale_invariant_steps());
    };
    CHECK(train(true) == train(false));
}

TEST_CASE("a run whose last checkpoint failed saves it when it is called again") {
    const TemporaryDirectory place;
    Repairable training;
    Runner runner(training.model, training.sgd, training.loader, mse_loss, {.epochs = 1});
    runner.add(SaveCheckpoints({.file = place / "net{epoch}", .keep = 2}));
    std::filesystem::create_directory(place / "net1");
    CHECK_THROWS_AS(runner.run(), Error);
    std::filesystem::remove(place / "net1");
    runner.run();
    Repairable loaded;
    CHECK(load_checkpoint(loaded.model, loaded.sgd, place / "net1").value().steps == 5);
    CHECK(loaded.weights() == training.weights());
}

TEST_CASE("a run that was stopped continues when it is called again") {
    const Whole whole;
    const TemporaryDirectory place;
    std::vector<std::stop_source> stops(3);
    std::size_t number = 0;
    HookedRun hooked(place.path(), [&](const std::string& event, Runner& run) {
        // In an evaluation, in a step, and at the end of an epoch.
        const std::uint64_t steps = run.state().steps;
        if (number == 0 && event == "at_pause" && steps == 3) stops[0].request_stop();
        if (number == 1 && event == "before_step" && steps == 9) stops[1].request_stop();
        if (number == 2 && event == "after_step" && steps == 15) stops[2].request_stop();
    });
    for (number = 0; number < 3; ++number) {
        hooked.runner.stop_on(stops[number].get_token());
        hooked.runner.run();
        CHECK(hooked.runner.stopped() == stopped_by_token);
        CHECK_FALSE(hooked.runner.is_complete());
    }
    hooked.runner.stop_on(std::stop_token());
    hooked.runner.run();
    CHECK_FALSE(hooked.runner.stopped());
    CHECK(hooked.training.weights() == whole.weights);
}

TEST_CASE("two hooks whose checkpoints can be the same file are rejected") {
    const TemporaryDirectory place;
    std::filesystem::create_symlink(place.path(), place / "link");
    const auto refusal = [&](const SaveCheckpointsOptions& one, const SaveCheckpointsOptions& other) {
        Repairable training;
        Runner runner(training.model, training.sgd, training.loader, mse_loss, {.steps = 0});
        runner.add(Evaluation("score", [] { return 1.0; }));
        runner.add(SaveCheckpoints(one));
        runner.add(SaveCheckpoints(other));
        try {
            runner.run();
            runner.run();  // the same hooks again are not others
        } catch (const InvalidArgument& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    const auto file = [&](const char* name) { return SaveCheckpointsOptions{.file = place / name, .at_end = false}; };
    CHECK(
        refusal(file("net{step}"), file("net{epoch}")) ==
        fmt::format("Runner: file of SaveCheckpoints of a hook is {} and file of SaveCheckpoints of another one is {}, "
                    "which can be the same file; expected different files",
                    (place / "net{step}").string(), (place / "net{epoch}").string()));
    for (const auto& [one, other] : std::vector<std::pair<const char*, const char*>>{{"net", "net"},
                                                                                     {"net", "link/./net"},
                                                                                     {"net{step}", "net{step}"},
                                                                                     {"net{step}", "net1{step}"},
                                                                                     {"{epoch}-{step}", "1-{epoch}"},
                                                                                     {"{epoch}{step}", "{step}0"},
                                                                                     {"net{step}", "net7.resume"},
                                                                                     {"net{step}", "net{epoch}.resume"},
                                                                                     {"net", "net.resume"}}) {
        CAPTURE(one, other);
        CHECK_THAT(refusal(file(one), file(other)), contains("can be the same file; expected different files"));
        CHECK_THAT(refusal(file(other), file(one)), contains("can be the same file; expected different files"));
    }
    for (const auto& [one, other] : std::vector<std::pair<const char*, const char*>>{{"net{step}", "other{step}"},
                                                                                     {"e{epoch}", "s{step}"},
                                                                                     {"net{step}", "net"},
                                                                                     {"{step}a", "{step}b"},
                                                                                     {"{epoch}-{step}", "{step}"},
                                                                                     {"net{step}", "net-{step}"}}) {
        CAPTURE(one, other);
        CHECK(refusal(file(one), file(other)) == "");
    }
    SaveCheckpointsOptions with_best = file("a{step}");
    with_best.best = place / "net";
    with_best.score = "score";
    CHECK_THAT(refusal(with_best, file("net")), contains("best of SaveCheckpoints"));
    SaveCheckpointsOptions interrupted = file("b{step}");
    interrupted.interrupted = place / "net";
    CHECK_THAT(refusal(interrupted, with_best), contains("interrupted of SaveCheckpoints"));
}
