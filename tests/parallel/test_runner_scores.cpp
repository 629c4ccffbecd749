// Scores of a run: when they are computed, and how they end it.
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/parallel/functions.h"
#include "lockstep/parallel/run_hooks.h"
#include "lockstep/parallel/runner.h"
#include "lockstep/runtime/stop_signals.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/checkpoints.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using namespace lockstep::test;

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

TEST_CASE("several early stops of a run count separately, also after a resume") {
    const test::TemporaryDirectory place;
    // One score always improves, two never do.
    const auto epochs_of = [&](std::uint64_t most, bool resumes) {
        SingleTraining training;
        auto runner = training.runner({.epochs = most});
        if (resumes) runner.resume_from(load_checkpoint(training.model, training.sgd, place / "net").value());
        runner.add(Evaluation("dice", [&] { return static_cast<double>(runner.state().steps); }));
        runner.add(Evaluation("loss", [] { return 1.0; }));
        runner.add(StopEarly("dice", 2));
        runner.add(StopEarly("loss", 7, 0, false));
        runner.add(StopEarly("loss", 5, 0, false));
        runner.add(SaveCheckpoints({.file = place / "net"}));
        runner.run();
        return runner.state().epoch;
    };
    CHECK(epochs_of(20, false) == 6);
    CHECK(epochs_of(4, false) == 4);
    CHECK(epochs_of(20, true) == 6);
}

TEST_CASE("two evaluations of a run with the same name are rejected") {
    SingleTraining training;
    auto runner = training.runner({.epochs = 1});
    for (int i = 0; i < 2; ++i) runner.add(Evaluation("dice", [] { return 1.0; }));
    CHECK(message_of<InvalidArgument>([&] { runner.run(); }) ==
          "Evaluation of dice: the name is repeated; expected a unique name");
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
