// Learning rate schedules: the values that PyTorch 2.15.0 printed for the same arguments.
#include "lockstep/ops/lr_schedules.h"

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "lockstep/ops/adam.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;

namespace {

/// An optimizer with a rate of 0.1.
struct Model {
    Linear line{1, 1};
    LOCKSTEP_MEMBERS(line)
};
struct Trained {
    Model model;
    SGD sgd{model, {.lr = 0.1}};
};

/// The rates of epoch 0 and the following ones, as many as there are values.
template <class Schedule>
void check_rates(Optimizer& optimizer, Schedule& schedule, const std::vector<double>& expected) {
    for (std::size_t epoch = 0; epoch < expected.size(); ++epoch) {
        if (epoch > 0) schedule.step();
        INFO("epoch " << epoch);
        CHECK(optimizer.lr() == Approx(expected[epoch]).epsilon(1e-12).margin(1e-17));
        CHECK(schedule.last_lr()[0] == optimizer.lr());
        CHECK(schedule.last_epoch() == static_cast<std::int64_t>(epoch));
    }
}

template <class Make>
void check_schedule(Make&& make, const std::vector<double>& expected) {
    Trained trained;
    auto schedule = make(trained.sgd);
    check_rates(trained.sgd, schedule, expected);
}

}  // namespace

TEST_CASE("rates are multiplied at epochs") {
    check_schedule(
        [](Optimizer& o) { return StepLR(o, 3, 0.5); },
        {0.1,    0.1,     0.1,     0.05,    0.05,     0.05,     0.025,    0.025,     0.025,     0.0125,   0.0125,
         0.0125, 0.00625, 0.00625, 0.00625, 0.003125, 0.003125, 0.003125, 0.0015625, 0.0015625, 0.0015625});
    check_schedule(
        [](Optimizer& o) {
            return MultiStepLR(o, {2, 5, 5, 9}, 0.1);
        },
        {0.1, 0.1, 0.010000000000000002, 0.010000000000000002, 0.010000000000000002, 0.00010000000000000005,
         0.00010000000000000005, 0.00010000000000000005, 0.00010000000000000005, 1.0000000000000006e-05,
         1.0000000000000006e-05, 1.0000000000000006e-05, 1.0000000000000006e-05});
    check_schedule([](Optimizer& o) { return ExponentialLR(o, 0.9); },
                   {0.1, 0.09000000000000001, 0.08100000000000002, 0.07290000000000002, 0.06561000000000002,
                    0.05904900000000002, 0.05314410000000002, 0.04782969000000002, 0.043046721000000024});
    check_schedule([](Optimizer& o) { return LinearLR(o); },
                   {0.03333333333333333, 0.04666666666666667, 0.060000000000000005, 0.07333333333333335,
                    0.08666666666666668, 0.1, 0.1, 0.1, 0.1});
    check_schedule(
        [](Optimizer& o) { return LinearLR(o, {.start_factor = 0.25, .end_factor = 0.75, .total_iters = 4}); },
        {0.025, 0.037500000000000006, 0.05, 0.0625, 0.075, 0.075, 0.075, 0.075, 0.075});
    check_schedule(
        [](Optimizer& o) {
            return LambdaLR(o, [](std::int64_t epoch) { return 1.0 / (1 + static_cast<double>(epoch)); });
        },
        {0.1, 0.05, 0.03333333333333333, 0.025, 0.020000000000000004, 0.016666666666666666, 0.014285714285714285});
}

TEST_CASE("rates follow cosines") {
    check_schedule(
        [](Optimizer& o) { return CosineAnnealingLR(o, 5, 0.01); },
        {0.1, 0.09140576474687263, 0.06890576474687263, 0.04109423525312736, 0.018594235253127367, 0.01,
         0.018594235253127367, 0.04109423525312739, 0.06890576474687267, 0.09140576474687269, 0.10000000000000006,
         0.09140576474687272, 0.06890576474687268, 0.0410942352531274, 0.01859423525312738});
    check_schedule([](Optimizer& o) { return CosineAnnealingWarmRestarts(o, 3, 2, 0.01); },
                   {0.1, 0.0775, 0.032500000000000015, 0.1, 0.09397114317029975, 0.0775, 0.05500000000000001,
                    0.032500000000000015, 0.01602885682970026, 0.1, 0.09846666218300808, 0.09397114317029975,
                    0.08681980515339464, 0.0775, 0.06664685702961344});
    check_schedule(
        [](Optimizer& o) { return OneCycleLR(o, {.max_lr = 0.4, .total_steps = 12, .cycle_momentum = false}); },
        {0.016000000000000014, 0.1399158616878332, 0.3517140636488515, 0.39776617418036475, 0.3732051879365647,
         0.3246982615799052, 0.25895159907804133, 0.18505484106679002, 0.11322439928347969, 0.05339101207553224,
         0.01382679497015809, 1.6e-06});
    check_schedule(
        [](Optimizer& o) {
            return OneCycleLR(
                o, {.max_lr = 0.4, .total_steps = 15, .linear = true, .cycle_momentum = false, .three_phase = true});
        },
        {0.016, 0.12571428571428572, 0.23542857142857143, 0.34514285714285714, 0.3451428571428572, 0.23542857142857146,
         0.12571428571428572, 0.016000000000000014, 0.013714514285714286, 0.011429028571428572, 0.009143542857142858,
         0.0068580571428571435, 0.004572571428571429, 0.002287085714285715, 1.6000000000009063e-06});
}

TEST_CASE("a cycle varies the momentum inversely to the rate") {
    const std::vector<double> expected{0.95,
                                       0.8999999999999999,
                                       0.85,
                                       0.854951556604879,
                                       0.8688255099070633,
                                       0.8888739533021842,
                                       0.9111260466978157,
                                       0.9311744900929366,
                                       0.945048443395121,
                                       0.95};
    Trained trained;
    trained.sgd.set_options({.lr = 0.1, .momentum = 0.9});
    OneCycleLR of_sgd(trained.sgd, {.max_lr = 0.4, .total_steps = 10});
    Model model;
    Adam adam(model);
    OneCycleLR of_adam(adam, {.max_lr = 0.4, .total_steps = 10});
    for (std::size_t step = 0; step < expected.size(); ++step) {
        CHECK(trained.sgd.setting("momentum") == Approx(expected[step]).epsilon(1e-12));
        CHECK(adam.options().betas[0] == Approx(expected[step]).epsilon(1e-12));
        if (step + 1 < expected.size()) {
            of_sgd.step();
            of_adam.step();
        }
    }
    of_sgd.step();
    CHECK(test::refusal_of<InvalidArgument>([&] { of_sgd.step(); }) ==
          "OneCycleLR: tried to step 11 times. The specified number of total steps is 10");
}

TEST_CASE("schedules in sequence") {
    check_schedule(
        [](Optimizer& o) {
            std::vector<std::shared_ptr<LRSchedule>> all;
            all.push_back(
                std::make_shared<LinearLR>(o, LinearLROptions{.start_factor = 0.1, .end_factor = 1, .total_iters = 3}));
            all.push_back(std::make_shared<ExponentialLR>(o, 0.5));
            all.push_back(std::make_shared<StepLR>(o, 2, 0.1));
            return SequentialLR(o, std::move(all), {4, 8});
        },
        {0.010000000000000002, 0.04, 0.07, 0.1, 0.1, 0.05, 0.025, 0.0125, 0.1, 0.1, 0.010000000000000002,
         0.010000000000000002, 0.0010000000000000002, 0.0010000000000000002, 0.00010000000000000003});
    check_schedule(
        [](Optimizer& o) {
            std::vector<std::shared_ptr<LRSchedule>> all;
            all.push_back(
                std::make_shared<LinearLR>(o, LinearLROptions{.start_factor = 0.1, .end_factor = 1, .total_iters = 3}));
            all.push_back(std::make_shared<CosineAnnealingLR>(o, 6));
            return SequentialLR(o, std::move(all), {3});
        },
        {0.010000000000000002, 0.04, 0.07, 0.1, 0.09330127018922195, 0.07500000000000001, 0.05, 0.025000000000000012,
         0.006698729810778065, 0.0, 0.006698729810778065});
}

TEST_CASE("two concurrent schedules multiply") {
    Trained trained;
    LinearLR warm_up(trained.sgd, {.start_factor = 0.5, .end_factor = 1, .total_iters = 4});
    ExponentialLR decay(trained.sgd, 0.9);
    const std::vector<double> expected{0.05,
                                       0.05625,
                                       0.060750000000000005,
                                       0.06378750000000001,
                                       0.06561,
                                       0.059049000000000004,
                                       0.05314410000000001,
                                       0.04782969000000001,
                                       0.04304672100000001};
    for (std::size_t epoch = 0; epoch < expected.size(); ++epoch) {
        CHECK(trained.sgd.lr() == Approx(expected[epoch]).epsilon(1e-12));
        warm_up.step();
        decay.step();
    }
}

TEST_CASE("a plateau of the metric reduces the rate") {
    const std::vector<double> metrics{1.0, 0.9, 0.95, 0.91, 0.9, 0.89995, 0.9, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.71};
    const std::vector<double> smaller{0.1,
                                      0.1,
                                      0.1,
                                      0.1,
                                      0.010000000000000002,
                                      0.010000000000000002,
                                      0.010000000000000002,
                                      0.010000000000000002,
                                      0.010000000000000002,
                                      0.010000000000000002,
                                      0.0010000000000000002,
                                      0.0010000000000000002,
                                      0.0010000000000000002,
                                      0.00010000000000000003};
    const std::vector<double> larger{0.1,  0.1,  0.1,   0.05,  0.05,  0.05,  0.05,
                                     0.05, 0.05, 0.025, 0.025, 0.025, 0.025, 0.02};
    Trained first, second;
    ReduceLROnPlateau of_smaller(first.sgd, {.patience = 2});
    ReduceLROnPlateau of_larger(second.sgd, {.maximize = true,
                                             .factor = 0.5,
                                             .patience = 1,
                                             .threshold = 0.01,
                                             .absolute = true,
                                             .cooldown = 2,
                                             .min_lr = 0.02});
    for (std::size_t epoch = 0; epoch < metrics.size(); ++epoch) {
        of_smaller.step(metrics[epoch]);
        of_larger.step(-metrics[epoch]);
        CHECK(first.sgd.lr() == Approx(smaller[epoch]).epsilon(1e-12));
        CHECK(second.sgd.lr() == Approx(larger[epoch]).epsilon(1e-12));
    }
    CHECK(of_smaller.best() == 0.7);
}

TEST_CASE("a schedule resumes from its state") {
    const auto make = [](Optimizer& o) {
        std::vector<std::shared_ptr<LRSchedule>> all;
        all.push_back(std::make_shared<CosineAnnealingWarmRestarts>(o, 2, 2));
        all.push_back(std::make_shared<ExponentialLR>(o, 0.5));
        return SequentialLR(o, std::move(all), {7});
    };
    Trained whole;
    SequentialLR through = make(whole.sgd);
    for (int stop = 0; stop < 10; ++stop) {
        Trained resumed;
        SequentialLR again = make(resumed.sgd);
        again.load_state(through.state());
        resumed.sgd.set_lr(whole.sgd.lr());  // as the checkpoint of the optimizer does
        through.step();
        again.step();
        CHECK(resumed.sgd.lr() == whole.sgd.lr());
        CHECK(again.state() == through.state());
    }
    CHECK(test::refusal_of<InvalidArgument>([&] { through.load_state({}); }) ==
          "the state of a schedule lacks since_restart; expected a result of state()");
}

TEST_CASE("an impossible state is rejected, and the schedule does not change") {
    Trained trained;
    std::vector<std::shared_ptr<LRSchedule>> all;
    all.push_back(std::make_shared<CosineAnnealingWarmRestarts>(trained.sgd, 2, 2));
    all.push_back(std::make_shared<ExponentialLR>(trained.sgd, 0.5));
    SequentialLR schedule(trained.sgd, std::move(all), {7});
    for (int step = 0; step < 3; ++step) schedule.step();
    const auto good = schedule.state();
    CHECK(good.size() >= 8);
    constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
    for (const auto& [name, value] : good) {
        for (const double bad : {-1.0, nan, infinity, -infinity, 1e300, 0.5}) {
            const bool is_rate = name.find("initial_lr") != std::string::npos;
            if (is_rate && (bad == 1e300 || bad == 0.5)) continue;
            CAPTURE(name, bad);
            auto changed = good;
            changed[name] = bad;
            CHECK_THROWS_AS(schedule.load_state(changed), InvalidArgument);
            CHECK(schedule.state() == good);
        }
    }
    ReduceLROnPlateau plateau(trained.sgd, {});
    plateau.step(1);
    const auto before = plateau.state();
    for (const std::string name : {"bad_epochs", "cooldown_left", "best"})
        for (const double bad : {-1.0, nan, infinity, 1e300, 0.5}) {
            if (name == "best" && !std::isnan(bad)) continue;
            CAPTURE(name, bad);
            auto changed = before;
            changed[name] = bad;
            CHECK_THROWS_AS(plateau.load_state(changed), InvalidArgument);
            CHECK(plateau.state() == before);
        }
}

TEST_CASE("groups keep the ratio of their rates") {
    Trained trained;
    trained.sgd.add_group({"line.bias"}, {.lr = 0.4});
    StepLR schedule(trained.sgd, 1, 0.5);
    schedule.step();
    CHECK(trained.sgd.lr(0) == 0.05);
    CHECK(trained.sgd.lr(1) == 0.2);
}

TEST_CASE("invalid arguments of schedules are rejected") {
    Trained trained;
    Optimizer& o = trained.sgd;
    CHECK(test::refusal_of<InvalidArgument>([&] { StepLR(o, 0); }) ==
          "StepLR: invalid step_size (0); expected a positive number");
    CHECK(test::refusal_of<InvalidArgument>([&] { LinearLR(o, {.start_factor = 0}); }) ==
          "LinearLR: invalid start_factor (0); expected (0, 1]");
    CHECK(test::refusal_of<InvalidArgument>([&] { CosineAnnealingLR(o, 0); }) ==
          "CosineAnnealingLR: invalid t_max (0); expected a positive number");
    CHECK(test::refusal_of<InvalidArgument>([&] { OneCycleLR(o, {.max_lr = 1}); }) ==
          "OneCycleLR: invalid total_steps (0); expected a positive number");
    CHECK(test::refusal_of<InvalidArgument>([&] { LambdaLR(o, std::vector<LambdaLR::Factor>{}); }) ==
          "LambdaLR: 0 factors for 1 parameter groups; expected one for each");
    CHECK(test::refusal_of<InvalidArgument>([&] { ReduceLROnPlateau(o, {.factor = 1}); }) ==
          "ReduceLROnPlateau: invalid factor (1); expected less than 1");
    CHECK(test::refusal_of<InvalidArgument>([&] { SequentialLR(o, {std::make_shared<StepLR>(o, 1)}, {3}); }) ==
          "SequentialLR: 1 schedules and 1 milestones; expected one milestone fewer than schedules");
}
