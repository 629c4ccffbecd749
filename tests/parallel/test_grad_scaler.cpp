// GradScaler in steps and in PyTorch's longer form, beside what PyTorch did (recorded_scales.h). In several processes:
// test_grad_scaler_ranks.
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/ops/clip_grad.h"
#include "lockstep/ops/grad_scaler.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/parallel/all_optimizers.h"
#include "lockstep/tests/parallel/scaled_training.h"
#include "lockstep/tests/parallel/small_net.h"

using namespace lockstep;
using test::Kinked;
using Model = DataParallel<Kinked>;

namespace {

struct Trained {
    Model model;
    std::unique_ptr<Optimizer> optimizer;
    StepOptions how;

    Trained(const test::NamedOptimizer<Model>& named, const StepOptions& options, int devices = 3,
            ReductionMode reduction = ReductionMode::slice_wise)
        : model(test::seeded_kinked(), small_net::devices(devices),
                {.shards = 4, .reduction = reduction, .seed = 5, .bucket_bytes = 256}),
          optimizer(named.make(model)),
          how(options) {}

    StepLoss step(int number, bool spoiled = false) {
        const Tensor x = test::kinked_rows(number, spoiled);
        return model.step(*optimizer, x, x, test::mean_of_outputs, how);
    }
    std::vector<std::string> state() { return test::whole_state(model, *optimizer); }
};

const test::NamedOptimizer<Model>& sgd() { return test::all_optimizers<Model>()[0]; }

}  // namespace

TEST_CASE("a bad gradient skips exactly its step on every replica, and the scale goes PyTorch's way") {
    for (const auto& recorded : test::ordinary_scales())
        for (const int devices : {1, 2, 3, 4})
            for (const ReductionMode reduction : {ReductionMode::root, ReductionMode::slice_wise})
                for (const int parts : {1, 2}) {
                    INFO("scale " << recorded.options.init_scale << " at first, " << devices << " devices, " << parts
                                  << " microbatches" << (reduction == ReductionMode::root ? ", root" : ", slices"));
                    Trained trained(sgd(), {}, devices, reduction);
                    CHECK(test::train_as_recorded(trained.model, *trained.optimizer, recorded,
                                                  {.accumulation_steps = parts}) == "");
                    trained.model.engine().verify_replicas();
                }
}

TEST_CASE("a scale that is a power of two changes no bit of what is trained, nobody waiting in between") {
    const std::vector<std::vector<GradientClip>> clips{
        {}, {ClipGradNorm{.max_norm = 0.1}, ClipGradValue{.clip_value = 0.01}}};
    for (const auto& named : test::all_optimizers<Model>())
        for (const auto& clip : clips)
            for (const int parts : {1, 2}) {
                INFO(named.name << ", " << clip.size() << " clips, " << parts << " microbatches");
                const StepOptions how{.accumulation_steps = parts, .clip = clip, .skip_nonfinite = true};
                GradScaler scaler({.growth_interval = 2});
                StepOptions scaled = how;
                scaled.scaler = &scaler;
                Trained with(named, scaled), without(named, how);
                for (int i = 0; i < 6; ++i)
                    for (Trained* each : {&with, &without}) each->step(i, i == 3);
                CHECK((with.state() == without.state()));
                CHECK(scaler.get_scale() == 131072);  // 65536, twice as much after two, half after one, and again
            }
}

TEST_CASE("a loss that is not finite skips the step where the loss is scaled") {
    GradScaler scaler;
    Trained trained(sgd(), {.scaler = &scaler});
    trained.step(0);
    const auto before = trained.state();
    Tensor x = test::kinked_rows(1);
    x.select(0, 2).copy_(Tensor::full({6}, std::numeric_limits<float>::infinity()));
    const StepLoss bad = trained.model.step(*trained.optimizer, x, x, test::mean_of_outputs, trained.how);
    CHECK_FALSE(std::isfinite(bad.item()));
    CHECK(bad.skipped());
    CHECK((trained.state() == before));
    CHECK(scaler.get_scale() == 32768);
}

namespace {

/// Classes 0 to 4.
Tensor classes(std::int64_t first) { return Tensor::from(std::vector<std::int64_t>{first, 1, 2, 3}, {4}); }

}  // namespace

TEST_CASE("a step that is refused leaves the scale as it was") {
    GradScaler scaler({.growth_interval = 1});
    DataParallel<small_net::Net> model(small_net::Net{}, small_net::devices(2), {.shards = 4});
    SGD optimizer(model);
    const Tensor images = Tensor::randn({4, 2, 7, 7});
    const auto step = [&](std::int64_t first) {
        return model.step(optimizer, images, classes(first), nll_loss, {.scaler = &scaler});
    };
    static_cast<void>(step(0).item());
    CHECK(scaler.get_scale() == 131072);
    CHECK_THROWS_AS(step(77).item(), StepError);
    CHECK(scaler.get_scale() == 131072);
    static_cast<void>(step(0).item());
    CHECK(scaler.get_scale() == 262144);
}

namespace {

/// One weight whose gradient is what its input says.
struct One {
    Parameter weight{Tensor::full({1}, 1)};
    LOCKSTEP_MEMBERS(weight)
    Tensor forward(const Tensor& x) const { return x * weight; }
};

}  // namespace

TEST_CASE("the longer form goes PyTorch's way, to the ends of f32 too") {
    for (const auto& recorded : test::recorded_scales())
        for (const bool wrapped : {false, true}) {
            INFO("scale " << recorded.options.init_scale << " at first" << (wrapped ? ", wrapped" : ""));
            One plain;
            std::unique_ptr<DataParallel<One>> model;
            if (wrapped) model = std::make_unique<DataParallel<One>>(One{}, small_net::devices(2));
            const auto optimizer = wrapped ? std::make_unique<SGD>(*model, SgdOptions{.lr = 0})
                                           : std::make_unique<SGD>(plain, SgdOptions{.lr = 0});
            GradScaler scaler(recorded.options);
            for (int i = 0; i < static_cast<int>(recorded.after.size()); ++i) {
                const bool bad = recorded.bad.contains(i);
                const Tensor x =
                    Tensor::full({2, 1}, bad ? std::numeric_limits<double>::infinity() : recorded.gradient);
                optimizer->zero_grad();
                scaler.scale(sum(wrapped ? model->forward(x) : plain.forward(x))).backward();
                CHECK(scaler.step(*optimizer) == !bad);
                scaler.update();
                CHECK(scaler.get_scale() == recorded.after[static_cast<std::size_t>(i)].first);
                CHECK(scaler.state().at("_growth_tracker") ==
                      static_cast<double>(recorded.after[static_cast<std::size_t>(i)].second));
            }
        }
}
