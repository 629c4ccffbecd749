// Every kind of update, clipping and skipped steps on GPUs, of the stand-in or real: the same bits on any number of
// devices, and the CPU's results.
#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/ops/adagrad.h"
#include "lockstep/ops/adam.h"
#include "lockstep/ops/adaptive_rates.h"
#include "lockstep/ops/asgd.h"
#include "lockstep/ops/clip_grad.h"
#include "lockstep/ops/grad_scaler.h"
#include "lockstep/ops/lamb.h"
#include "lockstep/ops/lars.h"
#include "lockstep/ops/nadam.h"
#include "lockstep/ops/rmsprop.h"
#include "lockstep/ops/rprop.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/tests/consumer/lion.h"
#include "lockstep/tests/cuda_standin/training.h"

using namespace lockstep;
using test::gpus;
using test::Images;

namespace {

using Model = DataParallel<test::Small>;
using Values = std::vector<std::vector<float>>;

struct Case {
    const char* name;
    std::function<std::unique_ptr<Optimizer>(Model&)> make;
    StepOptions how;
    bool scales = false;  ///< with a GradScaler
    std::function<std::unique_ptr<AdaptiveRates>()> rates = {};
};

const std::vector<Case>& cases() {
    static const std::vector<Case> all{
        {"AdamW, clipped by its norm",
         [](Model& model) { return std::make_unique<AdamW>(model, AdamWOptions{.amsgrad = true}); },
         {.clip = {ClipGradNorm{.max_norm = 0.5}}, .skip_nonfinite = true}},
        {"RMSprop, clipped by value",
         [](Model& model) {
             return std::make_unique<RMSprop>(model, RmspropOptions{.lr = 1e-3, .momentum = 0.5, .centered = true});
         },
         {.clip = {ClipGradValue{.clip_value = 0.01}, ClipGradNorm{.max_norm = 0.1, .norm_type = 3, .group = 0}}}},
        {"Adagrad, in microbatches",
         [](Model& model) { return std::make_unique<Adagrad>(model); },
         {.accumulation_steps = 2, .clip = {ClipGradNorm{.max_norm = 0.5, .norm_type = INFINITY}}}},
        {"AdamW on a scaled loss",
         [](Model& model) { return std::make_unique<AdamW>(model); },
         {.clip = {ClipGradNorm{.max_norm = 0.5}}},
         true},
        {"SGD with AdaScale, in microbatches, on a scaled loss",
         [](Model& model) { return std::make_unique<SGD>(model, SgdOptions{.lr = 0.01, .momentum = 0.9}); },
         {.accumulation_steps = 2, .clip = {ClipGradNorm{.max_norm = 0.5}}},
         true,
         [] { return std::make_unique<AdaScale>(); }},
        {"SGD with YellowFin",
         [](Model& model) { return std::make_unique<SGD>(model, SgdOptions{.lr = 0.01, .momentum = 0.5}); },
         {},
         false,
         [] { return std::make_unique<YellowFin>(YellowFin::Options{.lr_factor = 0.1}); }},
        {"LARS",
         [](Model& model) { return std::make_unique<LARS>(model, LarsOptions{.momentum = 0.9, .weight_decay = 0.01}); },
         {.clip = {ClipGradNorm{.max_norm = 0.5}}}},
        {"LAMB, in microbatches, on a scaled loss",
         [](Model& model) { return std::make_unique<LAMB>(model, LambOptions{.lr = 0.01}); },
         {.accumulation_steps = 2},
         true},
        {"NAdam", [](Model& model) { return std::make_unique<NAdam>(model); }, {}},
        {"Rprop", [](Model& model) { return std::make_unique<Rprop>(model, RpropOptions{.lr = 1e-4}); }, {}},
        {"ASGD", [](Model& model) { return std::make_unique<ASGD>(model, AsgdOptions{.t0 = 1}); }, {}},
        {"Lion", [](Model& model) { return std::make_unique<Lion>(model, LionOptions{.weight_decay = 0.1}); }, {}},
    };
    return all;
}

Values train(const Case& some, const Devices& devices, ReductionMode reduction) {
    manual_seed(1);
    Model model(test::Small{}, devices, {.shards = 8, .reduction = reduction, .seed = 5, .bucket_bytes = 4096});
    const auto optimizer = some.make(model);
    const Images images(22 * 4);
    GradScaler scaler({.growth_interval = 2});
    StepOptions how = some.how;
    if (some.scales) how.scaler = &scaler;
    const auto rates = some.rates ? some.rates() : nullptr;
    how.rates = rates.get();
    for (int i = 0; i < 4; ++i)
        model.step(*optimizer, images.batch(22 * i, 22 * i + 22), images.targets(22 * i, 22 * i + 22), nll_loss, how);
    if (some.scales) CHECK(scaler.get_scale() == 4 * 65536);
    model.engine().verify_replicas();
    return test::values_of(model.module());
}

}  // namespace

TEST_CASE("every optimizer gives the same bits on 1, 3 and 8 GPUs, and matches the CPU") {
    using enum ReductionMode;
    bool eight_by_root = false;  // alternates: reduction does not depend on the rule of the optimizer
    for (const Case& some : cases()) {
        INFO(some.name);
        const Values expected = train(some, gpus(1), root);
        CHECK((train(some, gpus(3), eight_by_root ? slice_wise : root) == expected));
        CHECK((train(some, gpus(8), eight_by_root ? root : slice_wise) == expected));
        eight_by_root = !eight_by_root;
        const Values cpu = train(some, test::some_devices(DeviceKind::cpu, 2), root);
        double error = 0, norm = 0;
        for (std::size_t i = 0; i < cpu.size(); ++i)
            for (std::size_t k = 0; k < cpu[i].size(); ++k) {
                error += std::pow(expected[i][k] - cpu[i][k], 2);
                norm += std::pow(cpu[i][k], 2);
            }
        CHECK(std::sqrt(error / norm) < 1e-3);  // if rounding changes a sign, Lion moves a whole step
    }
    test::check_no_mistakes();
}
