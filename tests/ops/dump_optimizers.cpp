// Prints what every optimizer makes of the same numbers and gradients in 100 steps, and every schedule's rates, as
// JSON, beside PyTorch's expression for it: what tests/pytorch/check_optimizers.py reads.
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/ops/adagrad.h"
#include "lockstep/ops/adam.h"
#include "lockstep/ops/lr_schedules.h"
#include "lockstep/ops/rmsprop.h"
#include "lockstep/ops/sgd.h"

using namespace lockstep;

namespace {

constexpr int numbers = 50, steps = 100;

struct Net {
    explicit Net(DType dtype) : x(start().to(dtype)) {}
    Parameter x;
    LOCKSTEP_MEMBERS(x)
    static Tensor start() {
        std::vector<double> values;
        for (int i = 0; i < numbers; ++i) values.push_back(std::sin(1 + i));
        return Tensor::from(values, {numbers});
    }
};

/// Of very different sizes, some 0.
std::vector<double> gradients(int step) {
    std::vector<double> values;
    for (int i = 0; i < numbers; ++i)
        values.push_back((i + step) % 11 == 0 ? 0 : std::cos(3.0 * i + 7.0 * step) * std::pow(10, i % 5 - 2));
    return values;
}

void print(const std::vector<double>& values) {
    std::printf("[");
    for (std::size_t i = 0; i < values.size(); ++i) std::printf("%s%.17g", i > 0 ? ", " : "", values[i]);
    std::printf("]");
}

bool first = true;

void begin(const char* kind, const std::string& torch) {
    std::printf("%s\n{\"kind\": \"%s\", \"torch\": \"%s\"", first ? "" : ",", kind, torch.c_str());
    first = false;
}

template <class Kind>
void optimizer(const std::string& torch, const typename Kind::Options& options) {
    for (const DType dtype : {DType::f32, DType::f64}) {
        Net net(dtype);
        Kind trained(net, options);
        for (int step = 0; step < steps; ++step) {
            net.x->set_grad(Tensor::from(gradients(step), {numbers}).to(dtype));
            trained.step();
        }
        begin("optimizer", torch);
        std::printf(", \"dtype\": \"%s\", \"values\": ", dtype == DType::f32 ? "float32" : "float64");
        print(net.x->to(DType::f64).to_vector<double>());
        std::printf("}");
    }
}

template <class Make>
void schedule(const std::string& torch, Make&& make, int epochs = 30) {
    Net net(DType::f64);
    SGD sgd(net, {.lr = 0.1, .momentum = 0.9});
    const auto made = make(sgd);
    std::vector<double> rates{sgd.lr()};
    for (int epoch = 0; epoch < epochs; ++epoch) {
        made->step();
        rates.push_back(sgd.lr());
    }
    begin("schedule", torch);
    std::printf(", \"values\": ");
    print(rates);
    std::printf("}");
}

void all_optimizers() {
    optimizer<SGD>("SGD(p, lr=0.01)", {.lr = 0.01});
    optimizer<SGD>("SGD(p, lr=0.01, momentum=0.9)", {.lr = 0.01, .momentum = 0.9});
    optimizer<SGD>("SGD(p, lr=0.01, momentum=0.9, dampening=0.1, weight_decay=0.02)",
                   {.lr = 0.01, .momentum = 0.9, .dampening = 0.1, .weight_decay = 0.02});
    optimizer<SGD>("SGD(p, lr=0.01, momentum=0.9, nesterov=True)", {.lr = 0.01, .momentum = 0.9, .nesterov = true});
    optimizer<SGD>("SGD(p, lr=0.001, momentum=0.5, maximize=True)", {.lr = 0.001, .momentum = 0.5, .maximize = true});
    optimizer<Adam>("Adam(p)", {});
    optimizer<Adam>("Adam(p, lr=0.02, betas=(0.8, 0.95), eps=1e-6)", {.lr = 0.02, .betas = {0.8, 0.95}, .eps = 1e-6});
    optimizer<Adam>("Adam(p, weight_decay=0.1)", {.weight_decay = 0.1});
    optimizer<Adam>("Adam(p, lr=0.01, amsgrad=True)", {.lr = 0.01, .amsgrad = true});
    optimizer<Adam>("Adam(p, maximize=True)", {.maximize = true});
    optimizer<AdamW>("AdamW(p)", {});
    optimizer<AdamW>("AdamW(p, lr=0.05, weight_decay=0.3, amsgrad=True)",
                     {.lr = 0.05, .weight_decay = 0.3, .amsgrad = true});
    optimizer<AdamW>("AdamW(p, weight_decay=0, maximize=True)", {.weight_decay = 0, .maximize = true});
    optimizer<RMSprop>("RMSprop(p)", {});
    optimizer<RMSprop>("RMSprop(p, lr=1e-3, alpha=0.9, eps=1e-4, weight_decay=0.05)",
                       {.lr = 1e-3, .alpha = 0.9, .eps = 1e-4, .weight_decay = 0.05});
    optimizer<RMSprop>("RMSprop(p, lr=1e-3, momentum=0.9)", {.lr = 1e-3, .momentum = 0.9});
    optimizer<RMSprop>("RMSprop(p, lr=1e-3, eps=1e-2, centered=True, momentum=0.5)",
                       {.lr = 1e-3, .eps = 1e-2, .momentum = 0.5, .centered = true});
    optimizer<RMSprop>("RMSprop(p, maximize=True)", {.maximize = true});
    optimizer<Adagrad>("Adagrad(p)", {});
    optimizer<Adagrad>("Adagrad(p, lr=0.1, lr_decay=0.1, weight_decay=0.01)",
                       {.lr = 0.1, .lr_decay = 0.1, .weight_decay = 0.01});
    optimizer<Adagrad>("Adagrad(p, initial_accumulator_value=0.5, eps=1e-6, maximize=True)",
                       {.initial_accumulator_value = 0.5, .eps = 1e-6, .maximize = true});
}

void all_schedules() {
    using Made = std::shared_ptr<LRSchedule>;
    schedule("StepLR(o, 4, 0.5)", [](Optimizer& o) { return std::make_unique<StepLR>(o, 4, 0.5); });
    schedule("MultiStepLR(o, [2, 5, 5, 9], 0.1)", [](Optimizer& o) {
        return std::make_unique<MultiStepLR>(o, std::vector<std::int64_t>{2, 5, 5, 9}, 0.1);
    });
    schedule("ExponentialLR(o, 0.9)", [](Optimizer& o) { return std::make_unique<ExponentialLR>(o, 0.9); });
    schedule("LinearLR(o)", [](Optimizer& o) { return std::make_unique<LinearLR>(o); });
    schedule("LambdaLR(o, lambda e: 1 / (1 + e))", [](Optimizer& o) {
        return std::make_unique<LambdaLR>(o, [](std::int64_t e) { return 1 / (1 + static_cast<double>(e)); });
    });
    schedule("CosineAnnealingLR(o, 7, 0.01)",
             [](Optimizer& o) { return std::make_unique<CosineAnnealingLR>(o, 7, 0.01); });
    schedule("CosineAnnealingWarmRestarts(o, 3, 2, 0.01)",
             [](Optimizer& o) { return std::make_unique<CosineAnnealingWarmRestarts>(o, 3, 2, 0.01); });
    schedule("OneCycleLR(o, 0.4, total_steps=31)", [](Optimizer& o) {
        return std::make_unique<OneCycleLR>(o, OneCycleLROptions{.max_lr = 0.4, .total_steps = 31});
    });
    schedule("OneCycleLR(o, 0.4, total_steps=31, pct_start=0.2, anneal_strategy='linear', three_phase=True)",
             [](Optimizer& o) {
                 return std::make_unique<OneCycleLR>(
                     o, OneCycleLROptions{
                            .max_lr = 0.4, .total_steps = 31, .pct_start = 0.2, .linear = true, .three_phase = true});
             });
    schedule("SequentialLR(o, [LinearLR(o, 0.1, 1.0, 3), CosineAnnealingLR(o, 10), ExponentialLR(o, 0.9)], [4, 12])",
             [](Optimizer& o) {
                 std::vector<Made> all;
                 all.push_back(std::make_shared<LinearLR>(
                     o, LinearLROptions{.start_factor = 0.1, .end_factor = 1, .total_iters = 3}));
                 all.push_back(std::make_shared<CosineAnnealingLR>(o, 10));
                 all.push_back(std::make_shared<ExponentialLR>(o, 0.9));
                 return std::make_unique<SequentialLR>(o, std::move(all), std::vector<std::int64_t>{4, 12});
             });
}

}  // namespace

int main() {
    std::printf("{\"start\": ");
    print(Net::start().to_vector<double>());
    std::printf(", \"gradients\": [");
    for (int step = 0; step < steps; ++step) {
        if (step > 0) std::printf(",\n");
        print(gradients(step));
    }
    std::printf("], \"cases\": [");
    all_optimizers();
    all_schedules();
    std::printf("\n]}\n");
}
