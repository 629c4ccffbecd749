// Steps that are skipped because a gradient is not finite: they change nothing. In several processes:
// test_clipping_ranks.
#include <cmath>
#include <string>
#include <vector>

#include "lockstep/ops/clip_grad.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/training.h"

using namespace lockstep;
using Model = test::KinkTraining::Model;

TEST_CASE("a skipped step leaves weights and all state unchanged on every replica") {
    for (const auto& named : test::all_optimizers<Model>())
        for (const ReductionMode reduction : {ReductionMode::root, ReductionMode::slice_wise})
            for (const int parts : {1, 2}) {
                INFO(named.name << (reduction == ReductionMode::root ? ", root, " : ", slices, ") << parts
                                << " microbatches");
                const StepOptions how{.accumulation_steps = parts, .skip_nonfinite = true};
                test::KinkTraining trained(named, how, reduction), straight(named, how, reduction);
                CHECK_FALSE(trained.step(0).skipped());
                const auto before = trained.state();
                const StepLoss bad = trained.step(1, true);
                CHECK(bad.skipped());
                CHECK(std::isfinite(bad.item()));
                CHECK((trained.state() == before));
                trained.model.engine().verify_replicas();
                CHECK(trained.model.engine().steps_done() == 1);
                // Later steps are the same as without it, and nothing waits in between.
                const StepLoss good = trained.step(2), bad_again = trained.step(3, true), better = trained.step(4);
                CHECK_FALSE(good.skipped());
                CHECK(bad_again.skipped());
                CHECK_FALSE(better.skipped());
                for (const int step : {0, 2, 4}) straight.step(step);
                CHECK((trained.state() == straight.state()));
                CHECK_FALSE((trained.state() == before));
            }
}

namespace {

/// A model whose output is 0 while its weights are 0, and whose gradients are infinite for large x.
struct Steep {
    Linear line{4, 2, false};
    LOCKSTEP_MEMBERS(line)
    Tensor forward(const Tensor& x) { return line(x) * 3e38; }
};

}  // namespace

TEST_CASE("gradients decide whether a step is skipped before they are clipped") {
    DataParallel<Steep> model(Steep{}, test::cpu_devices(3), {.shards = 4, .reduction = ReductionMode::slice_wise});
    {
        const NoGrad no_grad;
        model->line.weight->zero_();
    }
    SGD sgd(model, {.lr = 0.1});
    // The first clip makes infinity a finite number, which is not skipped.
    const StepOptions how{.clip = {ClipGradValue{.clip_value = 0.1}, ClipGradNorm{.max_norm = 1}},
                          .skip_nonfinite = true};
    const Tensor large = Tensor::full({16, 4}, 1000);
    const StepLoss bad = model.step(sgd, large, large, test::mean_of_outputs, how);
    CHECK(bad.item() == 0);
    CHECK(bad.skipped());
    CHECK(model->line.weight->to_vector<float>() == std::vector<float>(8, 0));
    model.step(sgd, large, large, test::mean_of_outputs, {.clip = how.clip});
    CHECK(model->line.weight->to_vector<float>() != std::vector<float>(8, 0));
}

TEST_CASE("without skip_nonfinite, a non-finite gradient is applied as in PyTorch") {
    test::KinkTraining trained(test::all_optimizers<Model>()[0], {}, ReductionMode::root);
    CHECK_FALSE(trained.step(1, true).skipped());
    CHECK(std::isnan(trained.model->kink.weight->to_vector<float>()[0]));
    CHECK(trained.model.engine().steps_done() == 1);
}
