// Input of tests/pytorch/check_optimizers.py, as JSON, together with the PyTorch expression of each entry. Contains
// every optimizer's results for the same numbers and gradients in each of 100 steps, the loss of a small network during
// 100 steps, and every schedule's rates over 100 epochs.
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/ops/adadelta.h"
#include "lockstep/ops/adagrad.h"
#include "lockstep/ops/adam.h"
#include "lockstep/ops/adamax.h"
#include "lockstep/ops/asgd.h"
#include "lockstep/ops/functional.h"
#include "lockstep/ops/lamb.h"
#include "lockstep/ops/lars.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/lr_schedules.h"
#include "lockstep/ops/nadam.h"
#include "lockstep/ops/radam.h"
#include "lockstep/ops/rmsprop.h"
#include "lockstep/ops/rprop.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/runtime/autograd.h"

using namespace lockstep;

namespace {

constexpr int numbers = 50, steps = 100, rows = 120;

/// Two parameters, so that groups can have different settings.
struct Numbers {
    explicit Numbers(DType dtype) : x(start(0).to(dtype)), y(start(1).to(dtype)) {}
    Parameter x, y;
    LOCKSTEP_MEMBERS(x, y)
    static Tensor start(int which) {
        std::vector<double> values;
        for (int i = 0; i < numbers; ++i) values.push_back(std::sin(1 + i + 100 * which));
        return Tensor::from(values, {numbers});
    }
};

/// Gradients of very different sizes, some 0.
std::vector<double> gradients(int which, int step) {
    std::vector<double> values;
    for (int i = 0; i < numbers; ++i)
        values.push_back((i + step) % 11 == 0 ? 0 : std::cos(3.0 * i + 7.0 * step + which) * std::pow(10, i % 5 - 2));
    return values;
}

struct Net {
    Linear first{6, 16}, second{16, 3};
    LOCKSTEP_MEMBERS(first, second)
    Tensor forward(const Tensor& x) const { return second(tanh(first(x))); }
};

Tensor waves(std::int64_t count, std::int64_t width, double pace) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < count * width; ++i) values.push_back(std::sin(pace * static_cast<double>(i)));
    return Tensor::from(values, {count, width});
}
const Tensor& inputs() {
    static const Tensor x = [] {
        std::vector<double> values;
        for (int i = 0; i < rows * 6; ++i) values.push_back(std::sin(1.7 * i * i));
        return Tensor::from(values, {rows, 6});
    }();
    return x;
}
/// Targets that take the network more than 100 steps to learn: near a minimum, RMSprop and Adam amplify rounding
/// errors.
const Tensor& targets() {
    static const Tensor y = inputs().slice(1, 0, 3) * inputs().slice(1, 3, 6) * 2;
    return y;
}
/// The members in order, with the same values for every case.
std::vector<Tensor> weights() {
    return {waves(16, 6, 0.9) * 0.4, waves(1, 16, 2.1).reshape({16}) * 0.2, waves(3, 16, 1.3) * 0.25,
            waves(1, 3, 0.7).reshape({3}) * 0.2};
}

Net fresh_net(DType dtype) {
    Net net;
    to(net, dtype);
    const NoGrad no_grad;
    const std::vector<Tensor> values = weights();
    std::size_t next = 0;
    for (const NamedTensor& named : named_tensors(net)) named.member->tensor().copy_(values[next++].to(dtype));
    return net;
}

void print(const std::vector<double>& values) {
    std::printf("[");
    for (std::size_t i = 0; i < values.size(); ++i) std::printf("%s%.17g", i > 0 ? ", " : "", values[i]);
    std::printf("]");
}

void print(const Tensor& tensor) { print(tensor.to(DType::f64).to_vector<double>()); }

/// A list of `count` things that `print_one(i)` prints.
template <class PrintOne>
void print_list(std::size_t count, PrintOne&& print_one) {
    std::printf("[");
    for (std::size_t i = 0; i < count; ++i) {
        if (i > 0) std::printf(",\n");
        print_one(i);
    }
    std::printf("]");
}

void print(const std::vector<std::vector<double>>& lists) {
    print_list(lists.size(), [&](std::size_t i) { print(lists[i]); });
}

/// `values`: one per step or epoch.
void print_case(const char* kind, const std::string& torch, const char* dtype,
                const std::vector<std::vector<double>>& values, const std::string& trained = {}) {
    static bool first = true;
    std::printf("%s\n{\"kind\": \"%s\", \"torch\": \"%s\", \"optimizer\": \"%s\", \"dtype\": \"%s\", \"values\": ",
                first ? "" : ",", kind, torch.c_str(), trained.c_str(), dtype);
    print(values);
    std::printf("}");
    first = false;
}

template <class Kind>
void print_numbers(const std::string& torch, DType dtype, const std::function<void(Kind&)>& prepare,
                   const typename Kind::Options& options) {
    Numbers net(dtype);
    Kind trained(net, options);
    if (prepare) prepare(trained);
    std::vector<std::vector<double>> values;
    for (int step = 0; step < steps; ++step) {
        net.x->set_grad(Tensor::from(gradients(0, step), {numbers}).to(dtype));
        net.y->set_grad(Tensor::from(gradients(1, step), {numbers}).to(dtype));
        trained.step();
        values.push_back(net.x->to(DType::f64).to_vector<double>());
        const auto y = net.y->to(DType::f64).to_vector<double>();
        values.back().insert(values.back().end(), y.begin(), y.end());
    }
    print_case("numbers", torch, dtype == DType::f32 ? "float32" : "float64", values);
}

template <class Kind>
void print_curve(const std::string& torch, DType dtype, const typename Kind::Options& options) {
    Net net = fresh_net(dtype);
    Kind trained(net, options);
    const Tensor x = inputs().to(dtype), y = targets().to(dtype);
    std::vector<std::vector<double>> losses;
    for (int step = 0; step < steps; ++step) {
        trained.zero_grad();
        const Tensor loss = mse_loss(net.forward(x), y).value();
        losses.push_back({loss.item()});
        loss.backward();
        trained.step();
    }
    print_case("curve", torch, dtype == DType::f32 ? "float32" : "float64", losses);
}

template <class Kind>
void optimizer(const std::string& torch, const typename Kind::Options& options,
               const std::function<void(Kind&)>& prepare = {}) {
    for (const DType dtype : {DType::f32, DType::f64}) {
        print_numbers<Kind>(torch, dtype, prepare, options);
        if (!prepare && !options.maximize) print_curve<Kind>(torch, dtype, options);
    }
}

void all_optimizers() {
    optimizer<SGD>("SGD(p, lr=0.01)", {.lr = 0.01});
    optimizer<SGD>("SGD(p, lr=0.01, momentum=0.9)", {.lr = 0.01, .momentum = 0.9});
    optimizer<SGD>("SGD(p, lr=0.01, momentum=0.9, dampening=0.1)", {.lr = 0.01, .momentum = 0.9, .dampening = 0.1});
    optimizer<SGD>("SGD(p, lr=0.01, weight_decay=0.02)", {.lr = 0.01, .weight_decay = 0.02});
    optimizer<SGD>("SGD(p, lr=0.01, momentum=0.9, nesterov=True)", {.lr = 0.01, .momentum = 0.9, .nesterov = true});
    optimizer<SGD>("SGD(p, lr=0.001, momentum=0.5, maximize=True)", {.lr = 0.001, .momentum = 0.5, .maximize = true});
    optimizer<Adam>("Adam(p)", {});
    optimizer<Adam>("Adam(p, lr=0.005, betas=(0.8, 0.95))", {.lr = 0.005, .betas = {0.8, 0.95}});
    optimizer<Adam>("Adam(p, lr=0.02, eps=1e-4)", {.lr = 0.02, .eps = 1e-4});
    optimizer<Adam>("Adam(p, weight_decay=0.1)", {.weight_decay = 0.1});
    optimizer<Adam>("Adam(p, lr=0.01, amsgrad=True)", {.lr = 0.01, .amsgrad = true});
    optimizer<Adam>("Adam(p, maximize=True)", {.maximize = true});
    optimizer<Adam>("Adam([{'params': [x]}, {'params': [y], 'lr': 0.05, 'betas': (0.5, 0.9)}], lr=0.01)", {.lr = 0.01},
                    [](Adam& adam) {
                        adam.add_group({"y"}, {.lr = 0.05, .betas = {0.5, 0.9}});
                    });
    optimizer<AdamW>("AdamW(p)", {});
    optimizer<AdamW>("AdamW(p, lr=0.005, betas=(0.8, 0.95), eps=1e-6)",
                     {.lr = 0.005, .betas = {0.8, 0.95}, .eps = 1e-6});
    optimizer<AdamW>("AdamW(p, lr=0.05, weight_decay=0.3)", {.lr = 0.05, .weight_decay = 0.3});
    optimizer<AdamW>("AdamW(p, lr=0.05, amsgrad=True)", {.lr = 0.05, .amsgrad = true});
    optimizer<AdamW>("AdamW(p, maximize=True)", {.maximize = true});
    optimizer<RMSprop>("RMSprop(p)", {});
    optimizer<RMSprop>("RMSprop(p, lr=1e-3, alpha=0.9)", {.lr = 1e-3, .alpha = 0.9});
    optimizer<RMSprop>("RMSprop(p, lr=1e-3, eps=1e-4)", {.lr = 1e-3, .eps = 1e-4});
    optimizer<RMSprop>("RMSprop(p, lr=1e-3, weight_decay=0.05)", {.lr = 1e-3, .weight_decay = 0.05});
    optimizer<RMSprop>("RMSprop(p, lr=1e-3, momentum=0.9)", {.lr = 1e-3, .momentum = 0.9});
    // The mean's square is subtracted from the square's mean, which loses digits.
    optimizer<RMSprop>("RMSprop(p, lr=1e-3, eps=1e-2, centered=True)", {.lr = 1e-3, .eps = 1e-2, .centered = true});
    optimizer<RMSprop>("RMSprop(p, lr=1e-3, eps=1e-2, centered=True, momentum=0.5)",
                       {.lr = 1e-3, .eps = 1e-2, .momentum = 0.5, .centered = true});
    optimizer<RMSprop>("RMSprop(p, maximize=True)", {.maximize = true});
    optimizer<Adagrad>("Adagrad(p)", {});
    optimizer<Adagrad>("Adagrad(p, lr=0.1, lr_decay=0.1)", {.lr = 0.1, .lr_decay = 0.1});
    optimizer<Adagrad>("Adagrad(p, lr=0.1, weight_decay=0.01)", {.lr = 0.1, .weight_decay = 0.01});
    optimizer<Adagrad>("Adagrad(p, lr=0.1, initial_accumulator_value=0.5)",
                       {.lr = 0.1, .initial_accumulator_value = 0.5});
    optimizer<Adagrad>("Adagrad(p, lr=0.1, eps=1e-4)", {.lr = 0.1, .eps = 1e-4});
    optimizer<Adagrad>("Adagrad(p, maximize=True)", {.maximize = true});
    optimizer<Adadelta>("Adadelta(p)", {});
    optimizer<Adadelta>("Adadelta(p, lr=0.5, rho=0.8, eps=1e-4, weight_decay=0.1)",
                        {.lr = 0.5, .rho = 0.8, .eps = 1e-4, .weight_decay = 0.1});
    optimizer<Adamax>("Adamax(p)", {});
    optimizer<Adamax>("Adamax(p, lr=0.02, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1, maximize=True)",
                      {.lr = 0.02, .betas = {0.8, 0.95}, .eps = 1e-4, .weight_decay = 0.1, .maximize = true});
    optimizer<RAdam>("RAdam(p)", {});
    optimizer<RAdam>("RAdam(p, lr=0.02, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1)",
                     {.lr = 0.02, .betas = {0.8, 0.95}, .eps = 1e-4, .weight_decay = 0.1});
    optimizer<RAdam>("RAdam(p, lr=0.02, weight_decay=0.1, decoupled_weight_decay=True, maximize=True)",
                     {.lr = 0.02, .weight_decay = 0.1, .decoupled_weight_decay = true, .maximize = true});
    optimizer<NAdam>("NAdam(p)", {});
    optimizer<NAdam>("NAdam(p, lr=0.02, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1, momentum_decay=0.1)",
                     {.lr = 0.02, .betas = {0.8, 0.95}, .eps = 1e-4, .weight_decay = 0.1, .momentum_decay = 0.1});
    optimizer<NAdam>("NAdam(p, lr=0.02, weight_decay=0.1, decoupled_weight_decay=True, maximize=True)",
                     {.lr = 0.02, .weight_decay = 0.1, .decoupled_weight_decay = true, .maximize = true});
    optimizer<Rprop>("Rprop(p)", {});
    optimizer<Rprop>("Rprop(p, lr=1e-3, etas=(0.25, 1.5), step_sizes=(1e-3, 1))",
                     {.lr = 1e-3, .etas = {0.25, 1.5}, .step_sizes = {1e-3, 1}});
    optimizer<Rprop>("Rprop(p, maximize=True)", {.maximize = true});
    optimizer<ASGD>("ASGD(p)", {});
    optimizer<ASGD>("ASGD(p, lr=0.05, lambd=0.01, alpha=0.6, t0=20, weight_decay=0.02)",
                    {.lr = 0.05, .lambd = 0.01, .alpha = 0.6, .t0 = 20, .weight_decay = 0.02});
    optimizer<ASGD>("ASGD(p, lr=1e-3, maximize=True)", {.lr = 1e-3, .maximize = true});
    optimizer<LARS>("LARS(p, lr=0.01)", {.lr = 0.01});
    optimizer<LARS>("LARS(p, momentum=0.9, dampening=0.1, weight_decay=0.02, trust_coefficient=0.01)",
                    {.momentum = 0.9, .dampening = 0.1, .weight_decay = 0.02, .trust_coefficient = 0.01});
    optimizer<LARS>("LARS(p, lr=0.1, momentum=0.9, nesterov=True, trust_clip=True, always_adapt=True)",
                    {.lr = 0.1, .momentum = 0.9, .nesterov = true, .trust_clip = true, .always_adapt = true});
    optimizer<LAMB>("LAMB(p)", {});
    optimizer<LAMB>("LAMB(p, lr=0.005, betas=(0.8, 0.95), eps=1e-4, weight_decay=0, always_adapt=True)",
                    {.lr = 0.005, .betas = {0.8, 0.95}, .eps = 1e-4, .weight_decay = 0, .always_adapt = true});
    optimizer<LAMB>("LAMB(p, lr=0.01, bias_correction=False, grad_averaging=False, trust_clip=True)",
                    {.lr = 0.01, .bias_correction = false, .grad_averaging = false, .trust_clip = true});
}

/// Metric for schedules that depend on one: it falls, then becomes worse permanently.
double metric(int epoch) { return 1 / (1.0 + 0.2 * epoch) + (epoch > 30 ? 0.5 : 0) + 0.05 * std::sin(epoch); }

/// Rates of both groups and other scheduled settings, for epoch 0 and the next hundred.
template <class Kind = SGD, class Make>
void schedule(const std::string& torch, Make&& make, const std::string& momentum = "momentum",
              const std::string& trained = "SGD(g, lr=0.1, momentum=0.9)",
              const typename Kind::Options& options = {.lr = 0.1, .momentum = 0.9}) {
    Numbers net(DType::f64);
    Kind optimizer(net, options);
    auto of_y = options;
    of_y.lr = 0.4;
    optimizer.add_group({"y"}, of_y);
    const auto made = make(optimizer);
    const auto settings = [&] { return std::vector{optimizer.lr(0), optimizer.lr(1), optimizer.setting(momentum, 0)}; };
    std::vector<std::vector<double>> values{settings()};
    for (int epoch = 0; epoch < steps; ++epoch) {
        if constexpr (requires { made->step(0.0); })
            made->step(metric(epoch));
        else
            made->step();
        values.push_back(settings());
    }
    print_case("schedule", torch, "float64", values, trained);
}

void plateaus() {
    const auto plateau = [](const char* torch, const ReduceLROnPlateauOptions& options) {
        schedule(torch, [&](Optimizer& o) { return std::make_unique<ReduceLROnPlateau>(o, options); });
    };
    plateau("ReduceLROnPlateau(o)", {});
    plateau("ReduceLROnPlateau(o, factor=0.5, patience=3, cooldown=2)", {.factor = 0.5, .patience = 3, .cooldown = 2});
    plateau("ReduceLROnPlateau(o, 'max', patience=5, threshold=0.1, min_lr=1e-3)",
            {.maximize = true, .patience = 5, .threshold = 0.1, .min_lr = 1e-3});
    plateau("ReduceLROnPlateau(o, factor=0.3, patience=2, threshold=0.02, threshold_mode='abs', eps=1e-3)",
            {.factor = 0.3, .patience = 2, .threshold = 0.02, .absolute = true, .eps = 1e-3});
    plateau("ReduceLROnPlateau(o, 'max', patience=4, threshold=0.02, threshold_mode='abs')",
            {.maximize = true, .patience = 4, .threshold = 0.02, .absolute = true});
}

void cycles() {
    const auto cycle = [](const char* torch, const OneCycleLROptions& options) {
        schedule(torch, [&](Optimizer& o) { return std::make_unique<OneCycleLR>(o, options); });
    };
    cycle("OneCycleLR(o, 0.4, total_steps=101)", {.max_lr = 0.4, .total_steps = 101});
    cycle("OneCycleLR(o, 0.4, total_steps=101, pct_start=0.2, anneal_strategy='linear', three_phase=True)",
          {.max_lr = 0.4, .total_steps = 101, .pct_start = 0.2, .linear = true, .three_phase = true});
    cycle(
        "OneCycleLR(o, 0.4, total_steps=101, div_factor=10, final_div_factor=100, base_momentum=0.6, "
        "max_momentum=0.8)",
        {.max_lr = 0.4,
         .total_steps = 101,
         .base_momentum = 0.6,
         .max_momentum = 0.8,
         .div_factor = 10,
         .final_div_factor = 100});
    cycle("OneCycleLR(o, 0.4, total_steps=101, cycle_momentum=False)",
          {.max_lr = 0.4, .total_steps = 101, .cycle_momentum = false});
    schedule<Adam>("OneCycleLR(o, 0.4, total_steps=101)",
                   [](Optimizer& o) {
                       return std::make_unique<OneCycleLR>(o, OneCycleLROptions{.max_lr = 0.4, .total_steps = 101});
                   },
                   "betas.0", "Adam(g, lr=0.1)", {.lr = 0.1});
}

void repeated_cycles() {
    const auto cycle = [](const char* torch, const CyclicLROptions& options) {
        schedule(torch, [&](Optimizer& o) { return std::make_unique<CyclicLR>(o, options); });
    };
    cycle("CyclicLR(o, 0.01, 0.3, step_size_up=7)", {.base_lr = 0.01, .max_lr = 0.3, .step_size_up = 7});
    cycle("CyclicLR(o, 0.01, 0.3, 7, 11, 'triangular2', base_momentum=0.6, max_momentum=0.95)",
          {.base_lr = 0.01,
           .max_lr = 0.3,
           .step_size_up = 7,
           .step_size_down = 11,
           .mode = CyclicMode::triangular2,
           .base_momentum = 0.6,
           .max_momentum = 0.95});
    cycle("CyclicLR(o, 0.01, 0.3, 7, 0, 'exp_range', gamma=0.98, cycle_momentum=False)", {.base_lr = 0.01,
                                                                                          .max_lr = 0.3,
                                                                                          .step_size_up = 7,
                                                                                          .step_size_down = 0,
                                                                                          .mode = CyclicMode::exp_range,
                                                                                          .gamma = 0.98,
                                                                                          .cycle_momentum = false});
    schedule<Adam>("CyclicLR(o, 0.01, 0.3, step_size_up=7)",
                   [](Optimizer& o) {
                       return std::make_unique<CyclicLR>(
                           o, CyclicLROptions{.base_lr = 0.01, .max_lr = 0.3, .step_size_up = 7});
                   },
                   "betas.0", "Adam(g, lr=0.1)", {.lr = 0.1});
}

void all_schedules() {
    using Made = std::shared_ptr<LRSchedule>;
    const auto falling = [](std::int64_t e) { return 1 / (1 + static_cast<double>(e)); };
    schedule("StepLR(o, 7)", [](Optimizer& o) { return std::make_unique<StepLR>(o, 7); });
    schedule("StepLR(o, 4, 0.5)", [](Optimizer& o) { return std::make_unique<StepLR>(o, 4, 0.5); });
    schedule("MultiStepLR(o, [2, 5, 5, 9, 80], 0.3)", [](Optimizer& o) {
        return std::make_unique<MultiStepLR>(o, std::vector<std::int64_t>{2, 5, 5, 9, 80}, 0.3);
    });
    schedule("ExponentialLR(o, 0.9)", [](Optimizer& o) { return std::make_unique<ExponentialLR>(o, 0.9); });
    schedule("LinearLR(o)", [](Optimizer& o) { return std::make_unique<LinearLR>(o); });
    schedule("LinearLR(o, start_factor=0.25, end_factor=0.75, total_iters=40)", [](Optimizer& o) {
        return std::make_unique<LinearLR>(o,
                                          LinearLROptions{.start_factor = 0.25, .end_factor = 0.75, .total_iters = 40});
    });
    schedule("ConstantLR(o)", [](Optimizer& o) { return std::make_unique<ConstantLR>(o); });
    schedule("ConstantLR(o, factor=0.3, total_iters=40)", [](Optimizer& o) {
        return std::make_unique<ConstantLR>(o, ConstantLROptions{.factor = 0.3, .total_iters = 40});
    });
    schedule("PolynomialLR(o)", [](Optimizer& o) { return std::make_unique<PolynomialLR>(o); });
    schedule("PolynomialLR(o, total_iters=90, power=1.7)", [](Optimizer& o) {
        return std::make_unique<PolynomialLR>(o, PolynomialLROptions{.total_iters = 90, .power = 1.7});
    });
    schedule("MultiplicativeLR(o, lambda e: 1 / (1 + e))",
             [&](Optimizer& o) { return std::make_unique<MultiplicativeLR>(o, falling); });
    schedule("MultiplicativeLR(o, [lambda e: 0.9, lambda e: 0.95])", [&](Optimizer& o) {
        return std::make_unique<MultiplicativeLR>(
            o, std::vector<LambdaLR::Factor>{[](std::int64_t) { return 0.9; }, [](std::int64_t) { return 0.95; }});
    });
    schedule("ChainedScheduler([LinearLR(o, 0.1, 1.0, 8), CosineAnnealingLR(o, 40), ExponentialLR(o, 0.99)])",
             [](Optimizer& o) {
                 std::vector<Made> all;
                 all.push_back(std::make_shared<LinearLR>(
                     o, LinearLROptions{.start_factor = 0.1, .end_factor = 1, .total_iters = 8}));
                 all.push_back(std::make_shared<CosineAnnealingLR>(o, 40));
                 all.push_back(std::make_shared<ExponentialLR>(o, 0.99));
                 return std::make_unique<ChainedScheduler>(std::move(all));
             });
    schedule("LambdaLR(o, lambda e: 1 / (1 + e))",
             [&](Optimizer& o) { return std::make_unique<LambdaLR>(o, falling); });
    schedule("LambdaLR(o, [lambda e: 1 / (1 + e), lambda e: 0.95 ** e])", [&](Optimizer& o) {
        return std::make_unique<LambdaLR>(
            o, std::vector<LambdaLR::Factor>{falling,
                                             [](std::int64_t e) { return std::pow(0.95, static_cast<double>(e)); }});
    });
    schedule("CosineAnnealingLR(o, 100)", [](Optimizer& o) { return std::make_unique<CosineAnnealingLR>(o, 100); });
    schedule("CosineAnnealingLR(o, 7, 0.01)",
             [](Optimizer& o) { return std::make_unique<CosineAnnealingLR>(o, 7, 0.01); });
    schedule("CosineAnnealingWarmRestarts(o, 13)",
             [](Optimizer& o) { return std::make_unique<CosineAnnealingWarmRestarts>(o, 13); });
    schedule("CosineAnnealingWarmRestarts(o, 3, 2, 0.01)",
             [](Optimizer& o) { return std::make_unique<CosineAnnealingWarmRestarts>(o, 3, 2, 0.01); });
    schedule("SequentialLR(o, [LinearLR(o, 0.1, 1.0, 3), CosineAnnealingLR(o, 10), ExponentialLR(o, 0.9)], [4, 12])",
             [](Optimizer& o) {
                 std::vector<Made> all;
                 all.push_back(std::make_shared<LinearLR>(
                     o, LinearLROptions{.start_factor = 0.1, .end_factor = 1, .total_iters = 3}));
                 all.push_back(std::make_shared<CosineAnnealingLR>(o, 10));
                 all.push_back(std::make_shared<ExponentialLR>(o, 0.9));
                 return std::make_unique<SequentialLR>(o, std::move(all), std::vector<std::int64_t>{4, 12});
             });
    cycles();
    repeated_cycles();
    plateaus();
}

}  // namespace

int main() {
    std::printf("{\"start\": [");
    print(Numbers::start(0));
    std::printf(", ");
    print(Numbers::start(1));
    std::printf("], \"gradients\": ");
    print_list(steps, [](std::size_t step) {
        print({gradients(0, static_cast<int>(step)), gradients(1, static_cast<int>(step))});
    });
    std::printf(", \"x\": ");
    print(inputs());
    std::printf(", \"y\": ");
    print(targets());
    std::printf(", \"weights\": ");
    const std::vector<Tensor> all = weights();
    print_list(all.size(), [&](std::size_t i) { print(all[i]); });
    std::printf(", \"metrics\": [");
    for (int epoch = 0; epoch < steps; ++epoch) std::printf("%s%.17g", epoch > 0 ? ", " : "", metric(epoch));
    std::printf("], \"cases\": [");
    all_optimizers();
    all_schedules();
    std::printf("\n]}\n");
}
