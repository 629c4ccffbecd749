// Optimizers on plain models, against loops in double precision.
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/ops/adadelta.h"
#include "lockstep/ops/adagrad.h"
#include "lockstep/ops/adam.h"
#include "lockstep/ops/adamax.h"
#include "lockstep/ops/asgd.h"
#include "lockstep/ops/lamb.h"
#include "lockstep/ops/lars.h"
#include "lockstep/ops/nadam.h"
#include "lockstep/ops/radam.h"
#include "lockstep/ops/rmsprop.h"
#include "lockstep/ops/rprop.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/consumer/lion.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/reference/optimizers.h"

using namespace lockstep;
using reference::Optimized;
using reference::OptimizerOptions;

namespace {

constexpr int numbers = 70;  // more than one cache line, not a multiple of a vector
constexpr int steps = 100;

struct Numbers {
    explicit Numbers(DType dtype = DType::f32) : x(start(0).to(dtype)), y(start(1).to(dtype)) {}
    Parameter x, y;
    LOCKSTEP_MEMBERS(x, y)

    static double start_of(int which, int i) { return std::sin(1 + i + 100 * which); }
    static Tensor start(int which) {
        std::vector<double> values;
        for (int i = 0; i < numbers; ++i) values.push_back(start_of(which, i));
        return Tensor::from(values, {numbers});
    }
};

/// Small and large, of both signs, sometimes 0.
double gradient_of(int which, int i, int step) {
    if ((i + step) % 11 == 0) return 0;
    return std::cos(3.0 * i + 7.0 * step + which) * std::pow(10, i % 5 - 2);
}

std::vector<double> gradients_of(int which, int step) {
    std::vector<double> values;
    for (int i = 0; i < numbers; ++i) values.push_back(gradient_of(which, i, step));
    return values;
}

void set_gradient(const Parameter& parameter, int which, int step) {
    parameter->set_grad(Tensor::from(gradients_of(which, step), {numbers}).to(parameter->dtype()));
}

struct One {
    Parameter x;
    LOCKSTEP_MEMBERS(x)
};

using Rule = std::function<void(const OptimizerOptions&, Optimized&, double)>;
/// A rule for a whole parameter.
using WholeRule = std::function<void(const OptimizerOptions&, std::vector<Optimized>&, const std::vector<double>&)>;

WholeRule each(const Rule& rule) {
    return [rule](const OptimizerOptions& options, std::vector<Optimized>& all, const std::vector<double>& gradients) {
        for (std::size_t i = 0; i < all.size(); ++i) rule(options, all[i], gradients[i]);
    };
}

/// The largest difference from the reference after all steps, relative to the distance that the numbers have moved.
double worst_error(Numbers& net, Optimizer& optimizer, const WholeRule& rule, const OptimizerOptions& options) {
    std::vector<Optimized> expected[2];
    for (int which : {0, 1})
        for (int i = 0; i < numbers; ++i) {
            Optimized number;
            number.value = which == 0 ? net.x->to(DType::f64).to_vector<double>()[static_cast<std::size_t>(i)]
                                      : net.y->to(DType::f64).to_vector<double>()[static_cast<std::size_t>(i)];
            expected[which].push_back(number);
        }
    for (int step = 0; step < steps; ++step) {
        for (int which : {0, 1}) {
            set_gradient(which == 0 ? net.x : net.y, which, step);
            rule(options, expected[which], gradients_of(which, step));
        }
        optimizer.step();
    }
    double worst = 0;
    for (int which : {0, 1}) {
        const auto found = (which == 0 ? net.x : net.y)->to(DType::f64).to_vector<double>();
        for (std::size_t i = 0; i < found.size(); ++i) {
            const double right = expected[which][i].value;
            worst = std::max(worst, std::abs(found[i] - right) / std::max(1.0, std::abs(right)));
        }
    }
    return worst;
}

/// `make` creates the optimizer of a model.
template <class Make>
void check_both_types(const WholeRule& rule, const OptimizerOptions& options, Make&& make) {
    for (const DType dtype : {DType::f32, DType::f64}) {
        INFO(name_of(dtype));
        Numbers net(dtype);
        auto optimizer = make(net);
        CHECK(worst_error(net, optimizer, rule, options) < (dtype == DType::f32 ? 3e-5 : 1e-12));
    }
}

template <class Make>
void check_both_types(const Rule& rule, const OptimizerOptions& options, Make&& make) {
    check_both_types(each(rule), options, make);
}

const Rule adam = [](const OptimizerOptions& o, Optimized& x, double g) { reference::adam(o, x, g, false); };
const Rule adamw = [](const OptimizerOptions& o, Optimized& x, double g) { reference::adam(o, x, g, true); };

}  // namespace

TEST_CASE("SGD") {
    check_both_types(reference::sgd, {.lr = 0.01}, [](Numbers& net) { return SGD(net, {.lr = 0.01}); });
    check_both_types(
        reference::sgd, {.lr = 0.01, .momentum = 0.9, .dampening = 0.1, .weight_decay = 0.02},
        [](Numbers& net) { return SGD(net, {.lr = 0.01, .momentum = 0.9, .dampening = 0.1, .weight_decay = 0.02}); });
    check_both_types(
        reference::sgd, {.lr = 0.01, .momentum = 0.8, .nesterov = true, .maximize = true},
        [](Numbers& net) { return SGD(net, {.lr = 0.01, .momentum = 0.8, .nesterov = true, .maximize = true}); });
}

TEST_CASE("Adam") {
    check_both_types(adam, {.lr = 1e-3}, [](Numbers& net) { return Adam(net); });
    check_both_types(adam, {.lr = 0.02, .weight_decay = 0.1, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6},
                     [](Numbers& net) {
                         return Adam(net, {.lr = 0.02, .betas = {0.8, 0.95}, .eps = 1e-6, .weight_decay = 0.1});
                     });
    check_both_types(adam, {.lr = 0.02, .maximize = true, .amsgrad = true},
                     [](Numbers& net) { return Adam(net, {.lr = 0.02, .amsgrad = true, .maximize = true}); });
}

TEST_CASE("AdamW") {
    check_both_types(adamw, {.lr = 1e-3, .weight_decay = 1e-2}, [](Numbers& net) { return AdamW(net); });
    check_both_types(adamw, {.lr = 0.05, .weight_decay = 0.3, .amsgrad = true},
                     [](Numbers& net) { return AdamW(net, {.lr = 0.05, .weight_decay = 0.3, .amsgrad = true}); });
}

TEST_CASE("RMSprop") {
    check_both_types(reference::rmsprop, {.lr = 1e-2}, [](Numbers& net) { return RMSprop(net); });
    check_both_types(
        reference::rmsprop, {.lr = 1e-3, .momentum = 0.9, .weight_decay = 0.05, .alpha = 0.9},
        [](Numbers& net) { return RMSprop(net, {.lr = 1e-3, .alpha = 0.9, .weight_decay = 0.05, .momentum = 0.9}); });
    // The mean's square is subtracted from the square's mean, which loses digits.
    check_both_types(
        reference::rmsprop, {.lr = 1e-3, .eps = 1e-2, .maximize = true, .centered = true},
        [](Numbers& net) { return RMSprop(net, {.lr = 1e-3, .eps = 1e-2, .centered = true, .maximize = true}); });
}

TEST_CASE("Adagrad") {
    check_both_types(reference::adagrad, {.lr = 1e-2, .eps = 1e-10}, [](Numbers& net) { return Adagrad(net); });
    check_both_types(
        reference::adagrad, {.lr = 0.1, .weight_decay = 0.01, .eps = 1e-6, .lr_decay = 0.1, .initial = 0.5},
        [](Numbers& net) {
            return Adagrad(
                net, {.lr = 0.1, .lr_decay = 0.1, .weight_decay = 0.01, .initial_accumulator_value = 0.5, .eps = 1e-6});
        });
}

TEST_CASE("Adadelta") {
    check_both_types(reference::adadelta, {.lr = 1, .eps = 1e-6}, [](Numbers& net) { return Adadelta(net); });
    check_both_types(reference::adadelta, {.lr = 0.5, .weight_decay = 0.1, .eps = 1e-4, .rho = 0.8, .maximize = true},
                     [](Numbers& net) {
                         return Adadelta(net,
                                         {.lr = 0.5, .rho = 0.8, .eps = 1e-4, .weight_decay = 0.1, .maximize = true});
                     });
}

TEST_CASE("Adamax") {
    check_both_types(reference::adamax, {.lr = 2e-3}, [](Numbers& net) { return Adamax(net); });
    check_both_types(reference::adamax, {.lr = 0.02, .weight_decay = 0.1, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-4},
                     [](Numbers& net) {
                         return Adamax(net, {.lr = 0.02, .betas = {0.8, 0.95}, .eps = 1e-4, .weight_decay = 0.1});
                     });
}

TEST_CASE("RAdam") {
    // The variance is rectified after five updates.
    check_both_types(reference::radam, {.lr = 1e-3}, [](Numbers& net) { return RAdam(net); });
    check_both_types(
        reference::radam, {.lr = 0.02, .weight_decay = 0.1, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-4, .maximize = true},
        [](Numbers& net) {
            return RAdam(net, {.lr = 0.02, .betas = {0.8, 0.95}, .eps = 1e-4, .weight_decay = 0.1, .maximize = true});
        });
    check_both_types(reference::radam, {.lr = 0.02, .weight_decay = 0.1, .decoupled = true}, [](Numbers& net) {
        return RAdam(net, {.lr = 0.02, .weight_decay = 0.1, .decoupled_weight_decay = true});
    });
}

TEST_CASE("NAdam") {
    check_both_types(reference::nadam, {.lr = 2e-3}, [](Numbers& net) { return NAdam(net); });
    check_both_types(reference::nadam,
                     {.lr = 0.02,
                      .weight_decay = 0.1,
                      .beta1 = 0.8,
                      .beta2 = 0.95,
                      .eps = 1e-4,
                      .momentum_decay = 0.1,
                      .maximize = true},
                     [](Numbers& net) {
                         return NAdam(net, {.lr = 0.02,
                                            .betas = {0.8, 0.95},
                                            .eps = 1e-4,
                                            .weight_decay = 0.1,
                                            .momentum_decay = 0.1,
                                            .maximize = true});
                     });
    for (const double decay : {0.0, 10.0, 1e4})
        check_both_types(
            reference::nadam, {.lr = 0.02, .weight_decay = 0.1, .momentum_decay = decay, .decoupled = true},
            [decay](Numbers& net) {
                return NAdam(
                    net, {.lr = 0.02, .weight_decay = 0.1, .momentum_decay = decay, .decoupled_weight_decay = true});
            });
}

TEST_CASE("the product of NAdam's momenta") {
    for (const double decay : {0.0, 1e-6, 4e-3, 0.5, 1e3})
        for (const double beta : {0.0, 0.5, 0.9, 0.9999}) {
            const NAdamOptions options{.betas = {beta, 0.999}, .momentum_decay = decay};
            double product = 1;
            for (int t = 1; t <= 3000; ++t) {
                product *= beta * (1 - 0.5 * std::pow(0.96, t * decay));
                if (t < 10 || t % 500 == 0) {
                    CAPTURE(decay, beta, t);
                    CHECK(NAdamRule::product_of_momenta(options, t) == Approx(product).epsilon(1e-10).margin(1e-15));
                }
            }
        }
}

TEST_CASE("Rprop") {
    check_both_types(reference::rprop, {.lr = 1e-2}, [](Numbers& net) { return Rprop(net); });
    check_both_types(
        reference::rprop, {.lr = 0.5, .less = 0.25, .more = 1.5, .smallest = 0.0625, .largest = 1, .maximize = true},
        [](Numbers& net) {
            return Rprop(net, {.lr = 0.5, .etas = {0.25, 1.5}, .step_sizes = {0.0625, 1}, .maximize = true});
        });
}

TEST_CASE("ASGD") {
    check_both_types(reference::asgd, {.lr = 1e-2}, [](Numbers& net) { return ASGD(net); });
    const OptimizerOptions options{
        .lr = 0.05, .weight_decay = 0.02, .lambd = 0.1, .power = 0.6, .t0 = 20, .maximize = true};
    const auto make = [](Numbers& net) {
        return ASGD(net, {.lr = 0.05, .lambd = 0.1, .alpha = 0.6, .t0 = 20, .weight_decay = 0.02, .maximize = true});
    };
    check_both_types(reference::asgd, options, make);
    Numbers net(DType::f64);
    ASGD optimizer = make(net);
    Optimized x{.value = Numbers::start_of(0, 5)};
    for (int step = 0; step < steps; ++step) {
        set_gradient(net.x, 0, step);
        optimizer.step();
        reference::asgd(options, x, gradient_of(0, 5, step));
    }
    const OptimizerState& state = optimizer.state_on(optimizer.store()->home(), {});
    CHECK(static_cast<const double*>(
              state.elements.find("ax")->second[0]->data())[optimizer.store()->segment({0, 1}).begin + 5] ==
          Approx(x.first).epsilon(1e-12));
}

TEST_CASE("LARS") {
    const WholeRule lars = reference::lars;
    check_both_types(lars, {.lr = 0.01, .eps = 1e-8}, [](Numbers& net) { return LARS(net, {.lr = 0.01}); });
    check_both_types(
        lars, {.lr = 1, .momentum = 0.9, .dampening = 0.1, .weight_decay = 0.02, .eps = 1e-8, .trust = 0.01},
        [](Numbers& net) {
            return LARS(net, {.momentum = 0.9, .dampening = 0.1, .weight_decay = 0.02, .trust_coefficient = 0.01});
        });
    check_both_types(lars,
                     {.lr = 0.5,
                      .momentum = 0.8,
                      .eps = 0.5,
                      .trust = 0.1,
                      .nesterov = true,
                      .maximize = true,
                      .always_adapt = true},
                     [](Numbers& net) {
                         return LARS(net, {.lr = 0.5,
                                           .momentum = 0.8,
                                           .trust_coefficient = 0.1,
                                           .eps = 0.5,
                                           .nesterov = true,
                                           .always_adapt = true,
                                           .maximize = true});
                     });
    for (const double trust : {0.02, 100.0})  // below lr and above it
        check_both_types(
            lars, {.lr = 0.05, .weight_decay = 0.02, .eps = 1e-8, .trust = trust, .trust_clip = true},
            [trust](Numbers& net) {
                return LARS(net, {.lr = 0.05, .weight_decay = 0.02, .trust_coefficient = trust, .trust_clip = true});
            });
}

TEST_CASE("LAMB") {
    const WholeRule lamb = reference::lamb;
    check_both_types(lamb, {.lr = 1e-3, .weight_decay = 0.01, .eps = 1e-6}, [](Numbers& net) { return LAMB(net); });
    check_both_types(lamb,
                     {.lr = 0.02,
                      .weight_decay = 0.1,
                      .beta1 = 0.8,
                      .beta2 = 0.95,
                      .eps = 1e-4,
                      .maximize = true,
                      .averaging = false},
                     [](Numbers& net) {
                         return LAMB(net, {.lr = 0.02,
                                           .betas = {0.8, 0.95},
                                           .eps = 1e-4,
                                           .weight_decay = 0.1,
                                           .grad_averaging = false,
                                           .maximize = true});
                     });
    check_both_types(lamb, {.lr = 0.01, .eps = 1e-3, .always_adapt = true, .bias_correction = false}, [](Numbers& net) {
        return LAMB(net, {.lr = 0.01, .eps = 1e-3, .weight_decay = 0, .bias_correction = false, .always_adapt = true});
    });
    check_both_types(lamb, {.lr = 0.01, .weight_decay = 0.01, .eps = 1e-6, .trust_clip = true},
                     [](Numbers& net) { return LAMB(net, {.lr = 0.01, .trust_clip = true}); });
    check_both_types(lamb, {.lr = 0.01, .eps = 1e-6},
                     [](Numbers& net) { return LAMB(net, {.lr = 0.01, .weight_decay = 0}); });
}

TEST_CASE("norms of parameters of any size") {
    // Grains of 64 elements, which a parameter fills or not; parameters and gradients of zeros have no trust ratio.
    for (const std::int64_t count : {1, 63, 64, 65, 5000, 70000})
        for (const bool of_lars : {false, true})
            for (const int zero : {0, 1, 2}) {
                CAPTURE(count, of_lars, zero);
                std::vector<double> values, gradients;
                for (std::int64_t i = 0; i < count; ++i) {
                    values.push_back(zero == 1 ? 0 : std::sin(static_cast<double>(i + 1)));
                    gradients.push_back(zero == 2 ? 0 : std::cos(static_cast<double>(3 * i)));
                }
                One net{Parameter(Tensor::from(values, {count}))};
                const auto optimizer = [&]() -> std::unique_ptr<Optimizer> {
                    if (of_lars) return std::make_unique<LARS>(net, LarsOptions{.weight_decay = 0.1});
                    return std::make_unique<LAMB>(net, LambOptions{.lr = 0.1, .weight_decay = 0.1});
                }();
                std::vector<Optimized> expected(values.size());
                for (std::size_t i = 0; i < values.size(); ++i) expected[i].value = values[i];
                for (int step = 0; step < 3; ++step) {
                    net.x->set_grad(Tensor::from(gradients, {count}));
                    optimizer->step();
                    if (of_lars)
                        reference::lars({.lr = 1, .weight_decay = 0.1, .eps = 1e-8}, expected, gradients);
                    else
                        reference::lamb({.lr = 0.1, .weight_decay = 0.1, .eps = 1e-6}, expected, gradients);
                }
                const auto found = net.x->to_vector<double>();
                double worst = 0;
                for (std::size_t i = 0; i < found.size(); ++i)
                    worst = std::max(worst, std::abs(found[i] - expected[i].value));
                CHECK(worst < 1e-12);
            }
}

TEST_CASE("a group without weight decay has no trust ratio, and NaN spreads only in its parameter") {
    Numbers net(DType::f64);
    LARS optimizer(net, {.lr = 0.5, .weight_decay = 0.1});
    optimizer.add_group({"y"}, {.lr = 0.5});
    std::vector<double> gradients = gradients_of(0, 0);
    gradients[3] = std::nan("");
    net.x->set_grad(Tensor::from(gradients, {numbers}));
    set_gradient(net.y, 1, 0);
    optimizer.step();
    const auto x = net.x->to_vector<double>(), y = net.y->to_vector<double>();
    CHECK(std::isnan(x[3]));
    for (int i = 0; i < numbers; ++i)
        CHECK(y[static_cast<std::size_t>(i)] == Approx(Numbers::start_of(1, i) - 0.5 * gradient_of(1, i, 0)));
}

TEST_CASE("a custom optimizer") {
    check_both_types(reference::lion, {.lr = 0.01, .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.99},
                     [](Numbers& net) { return Lion(net, {.lr = 0.01, .weight_decay = 0.1}); });
}

TEST_CASE("groups have separate settings, and parameters have separate update counts") {
    Numbers net;
    Adam optimizer(net, {.lr = 0.1});
    CHECK(optimizer.add_group({"y"}, {.lr = 0.001, .betas = {0.5, 0.9}}) == 1);
    OptimizerOptions of_x{.lr = 0.1}, of_y{.lr = 0.001, .beta1 = 0.5, .beta2 = 0.9};
    Optimized x{.value = Numbers::start_of(0, 5)}, y{.value = Numbers::start_of(1, 5)};
    for (int step = 0; step < 10; ++step) {
        if (step == 4) {
            optimizer.set_lr(0.5);
            of_x.lr = 0.5;
        }
        set_gradient(net.x, 0, step);
        reference::adam(of_x, x, gradient_of(0, 5, step), false);
        if (step % 2 == 0) {  // y has no gradient in between: nothing of it changes
            set_gradient(net.y, 1, step);
            reference::adam(of_y, y, gradient_of(1, 5, step), false);
        }
        optimizer.step();
        optimizer.zero_grad();
    }
    CHECK(net.x->to_vector<float>()[5] == Approx(x.value).epsilon(1e-5));
    CHECK(net.y->to_vector<float>()[5] == Approx(y.value).epsilon(1e-5));
    CHECK(optimizer.lr(1) == 0.001);
    CHECK(optimizer.setting("betas.1", 1) == 0.9);
    CHECK(optimizer.options(1).betas[0] == 0.5);
}

TEST_CASE("a setting that needs state adds it") {
    Numbers net;
    RMSprop optimizer(net, {.lr = 0.01});
    CHECK(optimizer.states() == std::vector<std::string>{"square_avg"});
    optimizer.add_group({"y"}, {.lr = 0.01, .momentum = 0.5, .centered = true});
    CHECK(optimizer.states() == std::vector<std::string>{"square_avg", "momentum_buffer", "grad_avg"});
    Optimized x{.value = Numbers::start_of(0, 7)}, y{.value = Numbers::start_of(1, 7)};
    for (int step = 0; step < 10; ++step) {
        set_gradient(net.x, 0, step);
        set_gradient(net.y, 1, step);
        reference::rmsprop({.lr = 0.01}, x, gradient_of(0, 7, step));
        reference::rmsprop({.lr = 0.01, .momentum = 0.5, .centered = true}, y, gradient_of(1, 7, step));
        optimizer.step();
    }
    CHECK(net.x->to_vector<float>()[7] == Approx(x.value).epsilon(1e-4));
    CHECK(net.y->to_vector<float>()[7] == Approx(y.value).epsilon(1e-4));
}

namespace {

template <class Call>
std::string refused(Call&& call) {
    try {
        call();
    } catch (const InvalidArgument& error) {
        return error.what();
    }
    return "nothing was thrown";
}

/// An optimizer with a given update function.
class Wrong final : public CustomOptimizer<LionOptions> {
public:
    using Update = std::function<void(UpdateRange&)>;
    Wrong(Numbers& net, Update what) : CustomOptimizer(net), what_(std::move(what)) {}
    const char* name() const override { return "Wrong"; }
    std::vector<std::string> states() const override { return {"exp_avg"}; }
    void update(UpdateRange& range) const override { what_(range); }

private:
    Update what_;
};

std::string refused_update(Wrong::Update what) {
    Numbers net;
    Wrong optimizer(net, std::move(what));
    set_gradient(net.x, 0, 0);
    const auto before = net.x->to_vector<float>();
    const std::string message = refused([&] { optimizer.step(); });
    CHECK(net.x->to_vector<float>() == before);
    return message;
}

}  // namespace

TEST_CASE("an optimizer rejects invalid settings with an error that begins with its name") {
    Numbers net;
    CHECK(refused([&] { Adam(net, {.lr = -1}); }) == "Adam: invalid lr (-1); expected 0 or more");
    CHECK(refused([&] {
              AdamW(net, {.betas = {0.9, 1}});
          }) == "AdamW: invalid betas.1 (1); expected at least 0 and below 1");
    CHECK(refused([&] { RMSprop(net, {.alpha = NAN}); }) == "RMSprop: invalid alpha (nan); expected 0 or more");
    CHECK(refused([&] { Adadelta(net, {.rho = 1.5}); }) == "Adadelta: invalid rho (1.5); expected [0, 1]");
    CHECK(refused([&] { LARS(net, {.trust_coefficient = -1}); }) ==
          "LARS: invalid trust_coefficient (-1); expected 0 or more");
    CHECK(refused([&] { LARS(net, {.nesterov = true}); }) ==
          "LARS: Nesterov momentum requires a momentum and zero dampening; expected momentum > 0 and dampening = 0");
    CHECK(refused([&] {
              LAMB(net, {.betas = {1, 0.9}});
          }) == "LAMB: invalid betas.0 (1); expected at least 0 and below 1");
    CHECK(refused([&] { NAdam(net, {.momentum_decay = -1}); }) ==
          "NAdam: invalid momentum_decay (-1); expected 0 or more");
    CHECK(refused([&] {
              NAdam(net, {.betas = {0.9, 1}});
          }) == "NAdam: invalid betas.1 (1); expected at least 0 and below 1");
    CHECK(refused([&] { Rprop(net, {.lr = -1}); }) == "Rprop: invalid lr (-1); expected 0 or more");
    CHECK(refused([&] {
              Rprop(net, {.etas = {0.5, 1}});
          }) == "Rprop: invalid etas (0.5, 1); expected 0 < etas[0] < 1 < etas[1]");
    CHECK(refused([&] { ASGD(net, {.weight_decay = -1}); }) == "ASGD: invalid weight_decay (-1); expected 0 or more");
    CHECK(refused([&] { RAdam(net, {.lr = -1}); }) == "RAdam: invalid lr (-1); expected 0 or more");
    CHECK(refused([&] { Adagrad(net, {.eps = -1}); }) == "Adagrad: invalid eps (-1); expected 0 or more");
    Adam adam_of_net(net);
    CHECK(refused([&] { adam_of_net.set_lr(-1); }) == "Adam: invalid lr (-1); expected 0 or more");
    CHECK(adam_of_net.lr() == 1e-3);
    CHECK(refused([&] { adam_of_net.setting("momentum"); }) ==
          "Adam: unknown setting momentum; expected one of lr, betas.0, betas.1, eps, weight_decay, amsgrad, maximize");
    CHECK(refused([&] { adam_of_net.lr(2); }) == "Adam: no group 2; expected a group below 1 (add_group creates one)");
    CHECK(refused([&] { adam_of_net.add_group({"z"}, {}); }) ==
          "Adam: no parameter or module is called z; expected names as in named_tensors()");
}

TEST_CASE("an update that mixes elements, or reads other tensors, is rejected before anything changes") {
    using test::contains;
    CHECK_THAT(refused_update([](UpdateRange& r) { r.set_parameter(r.parameter() - sum(r.gradient())); }),
               contains("Wrong: update calls sum, which mixes elements"));
    CHECK_THAT(refused_update([](UpdateRange& r) { r.set_parameter(r.gradient().slice(0, 0, 1)); }),
               contains("Wrong: update uses a part of a range, of shape (70,)"));
    const Tensor outside = Tensor::full({numbers}, 2);
    CHECK_THAT(refused_update([&](UpdateRange& r) { r.set_parameter(r.gradient() + outside); }),
               contains("Wrong: update reads a tensor of shape (70,) from outside"));
    CHECK_THAT(refused_update([](UpdateRange& r) { r.set_parameter(Tensor()); }),
               contains("Wrong: update sets the parameter to an undefined tensor"));
    CHECK_THAT(refused_update([](UpdateRange& r) { r.set_state("exp_avg", r.gradient().to(DType::f64)); }),
               contains("Wrong: update sets exp_avg to "));
    CHECK_THAT(refused_update([](UpdateRange& r) { r.set_state("other", r.gradient()); }),
               contains("Wrong: unknown state other"));
    CHECK_THAT(refused_update([](UpdateRange& r) { r.set_parameter(r.gradient() * r.setting("momentum")); }),
               contains("Wrong: unknown setting momentum"));
}
