// Learning rate schedules: the values that PyTorch 2.15.0 printed for the same arguments.
#include "lockstep/ops/lr_schedules.h"

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/ops/adagrad.h"
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

TEST_CASE("rates are constant, polynomial or multiplied by a function") {
    // Values of PyTorch 2.6.0, as in the two test cases below.
    check_schedule([](Optimizer& o) { return ConstantLR(o); },
                   {0.03333333333333333, 0.03333333333333333, 0.03333333333333333, 0.03333333333333333,
                    0.03333333333333333, 0.1, 0.1, 0.1});
    check_schedule([](Optimizer& o) { return ConstantLR(o, {.factor = 0.3, .total_iters = 3}); },
                   {0.03, 0.03, 0.03, 0.1, 0.1, 0.1});
    check_schedule([](Optimizer& o) { return PolynomialLR(o); },
                   {0.1, 0.08000000000000002, 0.060000000000000005, 0.04000000000000001, 0.02, 0.0, 0.0, 0.0});
    check_schedule([](Optimizer& o) { return PolynomialLR(o, {.total_iters = 6, .power = 2.5}); },
                   {0.1, 0.0633938145260609, 0.03628873693012116, 0.017677669529663684, 0.006415002990995842,
                    0.0011340230290662852, 0.0, 0.0, 0.0});
    check_schedule(
        [](Optimizer& o) {
            return MultiplicativeLR(o, [](std::int64_t epoch) { return 1 - 0.1 * static_cast<double>(epoch); });
        },
        {0.1, 0.09000000000000001, 0.07200000000000001, 0.0504, 0.03024, 0.01512, 0.006047999999999999});
}

TEST_CASE("rates and momenta are cyclic") {
    const auto check = [](Optimizer& optimizer, const char* momentum, const CyclicLROptions& options,
                          const std::vector<double>& rates, const std::vector<double>& momenta) {
        CyclicLR schedule(optimizer, options);
        for (std::size_t step = 0; step < rates.size(); ++step) {
            INFO("step " << step);
            CHECK(optimizer.lr() == Approx(rates[step]).epsilon(1e-12));
            CHECK(optimizer.setting(momentum) == Approx(momenta[step]).epsilon(1e-12));
            schedule.step();
        }
    };
    const std::vector<double> rates{0.01, 0.0575, 0.105, 0.15250000000000002, 0.2, 0.15250000000000002, 0.105, 0.0575,
                                    0.01, 0.0575, 0.105, 0.15250000000000002, 0.2, 0.15250000000000002};
    const std::vector<double> momenta{
        0.9, 0.875, 0.8500000000000001, 0.8250000000000001, 0.8, 0.8250000000000001, 0.8500000000000001, 0.875,
        0.9, 0.875, 0.8500000000000001, 0.8250000000000001, 0.8, 0.8250000000000001};
    Trained first, second, third;
    check(first.sgd, "momentum", {.base_lr = 0.01, .max_lr = 0.2, .step_size_up = 4}, rates, momenta);
    Model model;
    Adam adam(model);
    check(adam, "betas.0", {.base_lr = 0.01, .max_lr = 0.2, .step_size_up = 4}, rates, momenta);
    check(second.sgd, "momentum",
          {.base_lr = 0.01,
           .max_lr = 0.2,
           .step_size_up = 3,
           .step_size_down = 5,
           .mode = CyclicMode::triangular2,
           .base_momentum = 0.7,
           .max_momentum = 0.95},
          {0.01,
           0.07333333333333332,
           0.13666666666666666,
           0.2,
           0.16200000000000003,
           0.12399999999999999,
           0.08600000000000001,
           0.04800000000000001,
           0.01,
           0.041666666666666664,
           0.07333333333333332,
           0.105,
           0.08600000000000001,
           0.06699999999999999,
           0.04800000000000001,
           0.029000000000000005,
           0.01,
           0.025833333333333333,
           0.041666666666666664,
           0.0575},
          {0.95,
           0.8666666666666666,
           0.7833333333333333,
           0.7,
           0.75,
           0.7999999999999999,
           0.85,
           0.8999999999999999,
           0.95,
           0.9083333333333333,
           0.8666666666666666,
           0.825,
           0.85,
           0.875,
           0.8999999999999999,
           0.9249999999999999,
           0.95,
           0.9291666666666666,
           0.9083333333333333,
           0.8875});
    check(third.sgd, "momentum",
          {.base_lr = 0.01,
           .max_lr = 0.2,
           .step_size_up = 3,
           .step_size_down = 2,
           .mode = CyclicMode::exp_range,
           .gamma = 0.95},
          {0.01, 0.07016666666666665, 0.12431666666666664, 0.17290124999999995, 0.08737809374999995, 0.01,
           0.05655581973958337, 0.09845605750520828, 0.1360498819449218, 0.06987369392383791, 0.01, 0.04602400584417581,
           0.07844561110393396},
          {0.9, 0.8683333333333334, 0.8398333333333334, 0.8142625000000001, 0.8592746875, 0.9, 0.8754969369791666,
           0.8534441802604167, 0.8336579568710938, 0.8684875295137695, 0.9, 0.881039996924118, 0.8639759941558243});
    check_schedule(
        [](Optimizer& o) {
            return CyclicLR(
                o, {.base_lr = 0.01, .max_lr = 0.2, .step_size_up = 3, .step_size_down = 0, .cycle_momentum = false});
        },
        {0.01, 0.07333333333333332, 0.13666666666666666, 0.01, 0.07333333333333328, 0.13666666666666674, 0.01,
         0.07333333333333336});
}

TEST_CASE("chained schedules multiply") {
    check_schedule(
        [](Optimizer& o) {
            std::vector<std::shared_ptr<LRSchedule>> all;
            all.push_back(std::make_shared<ConstantLR>(o, ConstantLROptions{.factor = 0.1, .total_iters = 3}));
            all.push_back(std::make_shared<ExponentialLR>(o, 0.9));
            all.push_back(std::make_shared<StepLR>(o, 4, 0.5));
            return ChainedScheduler(std::move(all));
        },
        {0.010000000000000002, 0.009000000000000003, 0.008100000000000003, 0.07290000000000003, 0.032805000000000015,
         0.029524500000000013, 0.02657205000000001, 0.02391484500000001, 0.010761680250000006, 0.009685512225000005});
    // In a sequence, chained schedules start again together, from the initial rate.
    check_schedule(
        [](Optimizer& o) {
            std::vector<std::shared_ptr<LRSchedule>> both, all;
            both.push_back(std::make_shared<ConstantLR>(o, ConstantLROptions{.factor = 0.1, .total_iters = 2}));
            both.push_back(std::make_shared<ExponentialLR>(o, 0.5));
            all.push_back(std::make_shared<StepLR>(o, 1, 0.5));
            all.push_back(std::make_shared<ChainedScheduler>(std::move(both)));
            return SequentialLR(o, std::move(all), {2});
        },
        {0.1, 0.05, 0.01, 0.005, 0.025, 0.0125});
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

TEST_CASE("a cycle in a sequence starts from its own rate, the next schedule from the initial one") {
    check_schedule(
        [](Optimizer& o) {
            std::vector<std::shared_ptr<LRSchedule>> all;
            all.push_back(std::make_shared<ConstantLR>(o, ConstantLROptions{.factor = 0.5, .total_iters = 2}));
            all.push_back(std::make_shared<CyclicLR>(
                o, CyclicLROptions{.base_lr = 0.02, .max_lr = 0.08, .step_size_up = 2, .cycle_momentum = false}));
            all.push_back(std::make_shared<PolynomialLR>(o, PolynomialLROptions{.total_iters = 4}));
            return SequentialLR(o, std::move(all), {3, 7});
        },
        {0.05, 0.05, 0.1, 0.02, 0.05, 0.08, 0.05, 0.1, 0.07500000000000001, 0.05, 0.025, 0.0});
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

namespace {

/// Stops after every step, and continues with another schedule from the state.
template <class Make>
void check_resume(Make&& make) {
    Trained whole;
    auto through = make(whole.sgd);
    for (int stop = 0; stop < 10; ++stop) {
        Trained resumed;
        auto again = make(resumed.sgd);
        again.load_state(through.state());
        resumed.sgd.set_lr(whole.sgd.lr());  // as the checkpoint of the optimizer does
        through.step();
        again.step();
        CHECK(resumed.sgd.lr() == whole.sgd.lr());
        CHECK(again.state() == through.state());
    }
    CHECK(test::refusal_of<InvalidArgument>([&] { through.load_state({}); }).find("expected a result of state()") !=
          std::string::npos);
}

std::vector<std::shared_ptr<LRSchedule>> restarts_and_decay(Optimizer& o) {
    std::vector<std::shared_ptr<LRSchedule>> all;
    all.push_back(std::make_shared<CosineAnnealingWarmRestarts>(o, 2, 2));
    all.push_back(std::make_shared<ExponentialLR>(o, 0.5));
    return all;
}

}  // namespace

TEST_CASE("a schedule resumes from its state") {
    check_resume([](Optimizer& o) { return SequentialLR(o, restarts_and_decay(o), {7}); });
    check_resume([](Optimizer& o) { return ChainedScheduler(restarts_and_decay(o)); });
    check_resume([](Optimizer& o) { return ConstantLR(o, {.total_iters = 4}); });
    check_resume([](Optimizer& o) { return PolynomialLR(o, {.total_iters = 8, .power = 0.9}); });
    check_resume([](Optimizer& o) {
        return MultiplicativeLR(o, [](std::int64_t epoch) { return 1 / static_cast<double>(epoch); });
    });
    check_resume([](Optimizer& o) {
        return CyclicLR(o, {.base_lr = 0.01, .max_lr = 0.2, .step_size_up = 3, .mode = CyclicMode::triangular2});
    });
    Trained trained;
    SequentialLR sequence(trained.sgd, restarts_and_decay(trained.sgd), {7});
    CHECK(test::refusal_of<InvalidArgument>([&] { sequence.load_state({}); }) ==
          "the state of a schedule lacks since_restart; expected a result of state()");
}

namespace {

/// `expected`: least number of numbers in the state.
void check_impossible_states(LRSchedule& schedule, std::size_t expected) {
    for (int step = 0; step < 3; ++step) schedule.step();
    const auto good = schedule.state();
    CHECK(good.size() >= expected);
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
}

}  // namespace

TEST_CASE("an impossible state is rejected, and the schedule does not change") {
    Trained trained;
    SequentialLR sequence(trained.sgd, restarts_and_decay(trained.sgd), {7});
    check_impossible_states(sequence, 8);
    ChainedScheduler chain(restarts_and_decay(trained.sgd));
    check_impossible_states(chain, 8);
    constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
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
    CHECK(test::refusal_of<InvalidArgument>([&] { ConstantLR(o, {.factor = 0}); }) ==
          "ConstantLR: invalid factor (0); expected (0, 1]");
    CHECK(test::refusal_of<InvalidArgument>([&] { ConstantLR(o, {.factor = 1.5}); }) ==
          "ConstantLR: invalid factor (1.5); expected (0, 1]");
    CHECK(test::refusal_of<InvalidArgument>([&] { ConstantLR(o, {.total_iters = 0}); }) ==
          "ConstantLR: invalid total_iters (0); expected a positive number");
    CHECK(test::refusal_of<InvalidArgument>([&] { PolynomialLR(o, {.total_iters = -1}); }) ==
          "PolynomialLR: invalid total_iters (-1); expected a positive number");
    CHECK(test::refusal_of<InvalidArgument>([&] { PolynomialLR(o, {.power = -1}); }) ==
          "PolynomialLR: invalid power (-1); expected 0 or more");
    CHECK(test::refusal_of<InvalidArgument>([&] { MultiplicativeLR(o, std::vector<LambdaLR::Factor>{}); }) ==
          "MultiplicativeLR: 0 factors for 1 parameter groups; expected one for each");
    CHECK(test::refusal_of<InvalidArgument>([&] { CyclicLR(o, {.max_lr = 1, .step_size_up = 0}); }) ==
          "CyclicLR: invalid step_size_up (0); expected a positive number");
    CHECK(test::refusal_of<InvalidArgument>([&] { CyclicLR(o, {.max_lr = 1, .step_size_down = -1}); }) ==
          "CyclicLR: invalid step_size_down (-1); expected 0 or more");
    CHECK(test::refusal_of<InvalidArgument>([&] { CyclicLR(o, {.max_lr = -1}); }) ==
          "CyclicLR: invalid rate (-1); expected 0 or more");
    Model model;
    Adagrad no_momentum(model);
    CHECK(test::refusal_of<InvalidArgument>([&] { CyclicLR(no_momentum, {.max_lr = 1}); }) ==
          "CyclicLR: Adagrad has no momentum; expected cycle_momentum = false");
    CHECK(test::refusal_of<InvalidArgument>([&] { ChainedScheduler({}); }) ==
          "ChainedScheduler: no schedules; expected at least one");
    CHECK(test::refusal_of<InvalidArgument>([&] {
              ChainedScheduler({std::make_shared<StepLR>(o, 1), std::make_shared<StepLR>(no_momentum, 1)});
          }) == "ChainedScheduler: a schedule belongs to another optimizer; expected one optimizer for all");
    CHECK(o.lr() == 0.1);
    CHECK(no_momentum.lr() == 0.01);
}
