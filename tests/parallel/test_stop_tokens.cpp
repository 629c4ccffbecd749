// Runs, loops and evaluations that another thread stops.
#include <atomic>
#include <filesystem>
#include <functional>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/parallel/run_hooks.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/checkpoints.h"
#include "lockstep/tests/fixtures/datasets.h"
#include "lockstep/tests/fixtures/nets.h"
#include "lockstep/tests/fixtures/waiting.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// A thread that requests a stop when `ask` is called; `ask` returns when the request has been made.
class Stopper {
public:
    std::stop_token token() const { return source_.get_token(); }
    void ask() {
        asked_.open();
        if (!comes_true([&] { return source_.stop_requested(); })) throw std::runtime_error("no stop was requested");
    }
    ~Stopper() {
        asked_.open();
        thread_.join();
    }

private:
    std::stop_source source_;
    Gate asked_;
    std::thread thread_{[this] {
        asked_.pass();
        source_.request_stop();
    }};
};

/// A run of four epochs with two evaluations an epoch, from the checkpoint if it exists.
struct EvaluatedRun {
    SingleTraining training;
    Stopper stopper;
    int evaluations = 0;
    std::vector<std::string> calls;

    /// Asks for a stop after step `at_step`, or in evaluation number `in_evaluation` of this run.
    std::optional<int> run(const std::filesystem::path& file, std::int64_t at_step, int in_evaluation) {
        auto runner = training.runner({.epochs = 4});
        if (std::filesystem::exists(file))
            runner.resume_from(load_checkpoint(training.model, training.sgd, file).value());
        runner.stop_on(stopper.token());
        runner.add(Evaluation(
            "score",
            [&]() -> std::optional<double> {
                if (++evaluations == in_evaluation) stopper.ask();
                if (stopper.token().stop_requested()) return std::nullopt;
                return static_cast<double>(7 * runner.state().steps % 9);
            },
            2));
        runner.add(AfterStep([&](Runner&, const StepReport& step) {
            if (step.step == at_step) stopper.ask();
        }));
        struct Calls : RunHook {
            explicit Calls(std::vector<std::string>& calls) : calls_(&calls) {}
            void at_pause(Runner& run) override { note("pause", run); }
            void after_epoch(Runner& run) override { note("epoch", run); }
            void note(const std::string& what, const Runner& run) {
                const auto score = run.scores().find("score");
                calls_->push_back(what + " " + std::to_string(run.state().steps) + " " +
                                  (score == run.scores().end() ? "none" : std::to_string(score->second.steps)));
            }
            std::vector<std::string>* calls_;
        };
        runner.add(Calls(calls));
        runner.add(SaveCheckpoints({.file = file, .best = file.string() + ".best", .score = "score"}));
        runner.run();
        return runner.stopped();
    }
};

}  // namespace

TEST_CASE("another thread stops a run between two steps") {
    DataParallel model(HookedInput{}, {Device::cpu(0)});
    SGD sgd(model, {.lr = 0.01});
    Loader loader(model, fixed_rows(200), {.batch_size = 4});
    Stopper stopper;
    Runner runner(model, sgd, loader, mse_loss, {.epochs = 1});
    runner.add(AfterStep([&](Runner&, const StepReport& step) {
        if (step.step == 5) stopper.ask();
    }));
    runner.stop_on(stopper.token());
    runner.run();
    CHECK(runner.stopped() == stopped_by_token);
    CHECK(runner.state().batch >= 6);
    CHECK(runner.state().batch <= 10);
    CHECK(model.engine().steps_done() == runner.state().steps);

    // The model is ready for more steps, and a token that was used stops at once.
    static_cast<void>(model.step(sgd, Tensor::full({4, 3}, 1), Tensor::zeros({4, 2}), mse_loss).item());
    Runner again(model, sgd, loader, mse_loss, {.epochs = 1});
    again.stop_on(stopper.token());
    again.run();
    CHECK(again.stopped() == stopped_by_token);
    CHECK(again.state().steps == 0);
}

TEST_CASE("a loop that asks should_stop ends before the step after the request of another thread") {
    DataParallel model(HookedInput{}, {Device::cpu(0)});
    SGD sgd(model, {.lr = 0.01});
    Loader loader(model, fixed_rows(200), {.batch_size = 4});
    Stopper stopper;
    int steps = 0;
    for (auto& [x, y] : loader.epoch(0)) {
        if (model.should_stop(stopper.token())) break;
        model.step(sgd, x, y, mse_loss);
        if (++steps == 7) stopper.ask();
    }
    CHECK(steps == 7);
    CHECK(model.engine().steps_done() == 7);
    CHECK_FALSE(model.should_stop(std::stop_token()));
}

TEST_CASE("a run that a thread stops after any step, or in any evaluation, resumes with the same files and calls") {
    const TemporaryDirectory place;
    EvaluatedRun whole;
    CHECK(whole.run(place / "whole", -1, -1) == std::nullopt);
    REQUIRE(whole.calls.size() == 8);
    for (int trial = 0; trial < 28; ++trial) {
        const auto file = place / ("net" + std::to_string(trial));
        const std::int64_t at_step = trial < 20 ? trial : -1;
        const int in_evaluation = trial < 20 ? -1 : trial - 19;
        CAPTURE(at_step, in_evaluation);
        EvaluatedRun part, rest;
        const std::optional<int> why = part.run(file, at_step, in_evaluation);
        CHECK((why == stopped_by_token || at_step > 15));
        CHECK(rest.run(file, -1, -1) == std::nullopt);
        for (const char* end : {"", ".resume", ".best"})
            CHECK(get_bytes(file.string() + end) == get_bytes((place / "whole").string() + end));
        std::vector<std::string> calls = part.calls;
        calls.insert(calls.end(), rest.calls.begin(), rest.calls.end());
        CHECK(calls == whole.calls);
        CHECK(rest.training.weights() == whole.training.weights());
    }
}

TEST_CASE("another thread stops an evaluation before its next batch") {
    DataParallel model(HookedInput{}, {Device::cpu(0)});
    const Tensor x = Tensor::zeros({40, 3}), y = Tensor::zeros({40}, DType::i64);
    Loader loader(model, TensorDataset(x, y), {.batch_size = 4});
    for (const bool stops : {false, true}) {
        Stopper stopper;
        std::atomic<int> batches = 0;
        kernel_hook().forward = [&](int) {
            if (++batches == 3 && stops) stopper.ask();
        };
        const std::optional<double> found = accuracy(model, loader, stopper.token());
        kernel_hook().forward = [](int) {};
        CHECK(found.has_value() == !stops);
        CHECK(batches == (stops ? 3 : 10));
        if (found) CHECK(*found == accuracy(model, loader));
    }
}
