// GradScaler in steps and in PyTorch's manual form, compared with PyTorch's results (recorded_scales.h). In several
// processes: test_grad_scaler_ranks.
#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/ops/clip_grad.h"
#include "lockstep/ops/grad_scaler.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/runner.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/training.h"

using namespace lockstep;
using test::KinkNet;
using Trained = test::KinkTraining;
using Model = Trained::Model;

namespace {

struct Affine {
    Linear fc{6, 2};
    LOCKSTEP_MEMBERS(fc)
    Tensor forward(const Tensor& x) { return fc(x); }
};

const test::NamedOptimizer<Model>& sgd() { return test::all_optimizers<Model>()[0]; }

}  // namespace

TEST_CASE("a bad gradient skips exactly its step on every replica, and the scale follows PyTorch") {
    const auto check = [](const test::RecordedScales& recorded, int devices, ReductionMode reduction, int parts) {
        INFO("scale " << recorded.options.init_scale << " at first, " << devices << " devices, " << parts
                      << " microbatches" << (reduction == ReductionMode::root ? ", root" : ", slices"));
        Trained trained(sgd(), {}, reduction, devices);
        CHECK(test::train_as_recorded(trained.model, *trained.optimizer, recorded, {.accumulation_steps = parts}) ==
              "");
        trained.model.engine().verify_replicas();
    };
    const auto all = test::ordinary_scales();
    for (const int devices : {1, 2, 3, 4})
        for (const int parts : {1, 2}) {
            check(all[0], devices, ReductionMode::root, parts);
            check(all[0], devices, ReductionMode::slice_wise, parts);
        }
    for (const auto& recorded : all) check(recorded, 3, ReductionMode::slice_wise, 1);
}

TEST_CASE("a scale that is a power of two changes no bit of the weights, and no step waits") {
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
                CHECK(scaler.get_scale() == 131072);  // 65536, doubled after two steps, halved after one, and doubled
                                                      // again
            }
}

TEST_CASE("a non-finite loss skips the step if the loss is scaled") {
    GradScaler scaler;
    Trained trained(sgd(), {.scaler = &scaler});
    trained.step(0);
    const auto before = trained.state();
    Tensor x = test::kink_rows(1);
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

TEST_CASE("a refused step leaves the scale unchanged") {
    GradScaler scaler({.growth_interval = 1});
    DataParallel<test::ConvNet> model(test::ConvNet{}, test::cpu_devices(2), {.shards = 4});
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

/// One weight whose gradient is its input.
struct One {
    Parameter weight{Tensor::full({1}, 1)};
    LOCKSTEP_MEMBERS(weight)
    Tensor forward(const Tensor& x) const { return x * weight; }
};

}  // namespace

TEST_CASE("the manual form follows PyTorch, up to the limits of f32") {
    for (const auto& recorded : test::recorded_scales())
        for (const bool wrapped : {false, true}) {
            INFO("scale " << recorded.options.init_scale << " at first" << (wrapped ? ", wrapped" : ""));
            One plain;
            std::unique_ptr<DataParallel<One>> model;
            if (wrapped) model = std::make_unique<DataParallel<One>>(One{}, test::cpu_devices(2));
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

TEST_CASE("the manual form trains as without a scaler, with clipping after unscale_ and two optimizers") {
    const auto train = [](bool scales) {
        Model model(test::seeded_kink_net(), test::cpu_devices(3), {.shards = 4, .seed = 5});
        KinkNet aside = test::seeded_kink_net();
        SGD first(model, {.lr = 0.05, .momentum = 0.9}), second(aside, {.lr = 0.1});
        GradScaler scaler({.growth_interval = 2, .enabled = scales});
        std::vector<double> norms;
        for (int i = 0; i < 5; ++i) {
            first.zero_grad();
            second.zero_grad();
            const Tensor x = test::kink_rows(i);
            scaler.scale(mean(model.forward(x))).backward();
            scaler.scale(mean(aside.forward(x))).backward();
            scaler.unscale_(first);
            norms.push_back(clip_grad_norm_(first, {.max_norm = 0.1}).item());
            CHECK(scaler.step(first));
            CHECK(scaler.step(second));
            scaler.update();
        }
        CHECK(scaler.get_scale() == (scales ? 4 * 65536 : 1));
        return std::pair(std::pair(norms, test::whole_state(model, first)), aside.kink.weight->to_vector<float>());
    };
    CHECK((train(true) == train(false)));
}

TEST_CASE("both forms in turn share one scale") {
    GradScaler scaler({.growth_interval = 2});
    Trained trained(sgd(), {.scaler = &scaler});
    trained.step(0);
    const auto by_hand = [&](int number, bool bad) {
        trained.optimizer->zero_grad();
        scaler.scale(mean(trained.model.forward(test::kink_rows(number, bad)))).backward();
        scaler.step(*trained.optimizer);
        scaler.update();
    };
    by_hand(1, false);
    CHECK(scaler.get_scale() == 131072);
    trained.step(2, true);
    CHECK(scaler.get_scale() == 65536);
    by_hand(3, true);
    CHECK_FALSE(trained.step(4).skipped());
    CHECK_FALSE(trained.step(5).skipped());
    CHECK(scaler.get_scale() == 65536);
    scaler.update(3.0);
    CHECK_FALSE(trained.step(6).skipped());
    CHECK(scaler.get_scale() == 3);
}

TEST_CASE("a disabled scaler has no effect") {
    GradScaler scaler({.enabled = false});
    Trained with(sgd(), {.scaler = &scaler}), without(sgd(), {});
    for (const int number : {0, 1})
        for (Trained* each : {&with, &without}) CHECK_FALSE(each->step(number, number == 1).skipped());
    CHECK((with.state() == without.state()));
    CHECK(scaler.get_scale() == 1);
    CHECK(scaler.state().empty());
    const Tensor loss = Tensor::full({}, 2);
    CHECK(scaler.scale(loss).item() == 2);
}

namespace {

std::string refusal(const std::function<void()>& call) {
    try {
        call();
    } catch (const InvalidArgument& error) {
        return error.what();
    }
    return "";
}

}  // namespace

TEST_CASE("invalid options of a scaler are rejected") {
    const auto made = [](const GradScalerOptions& options) { return refusal([&] { GradScaler scaler(options); }); };
    CHECK(made({.init_scale = 0}) == "GradScaler: invalid init_scale (0); expected a finite f32 above 0");
    CHECK_THAT(made({.init_scale = 1e39}), test::contains("finite f32"));
    CHECK(made({.growth_factor = 1}) == "GradScaler: invalid growth_factor (1); expected a finite number above 1");
    CHECK(made({.backoff_factor = 1}) ==
          "GradScaler: invalid backoff_factor (1); expected a number above 0 and below 1");
    CHECK_THAT(made({.backoff_factor = 0}), test::contains("above 0"));
    CHECK(made({.growth_interval = 0}) == "GradScaler: invalid growth_interval (0); expected 1 or more");
    CHECK(made({}) == "");
}

TEST_CASE("calls in the wrong order are rejected as in PyTorch") {
    One one;
    SGD optimizer(one, {.lr = 0.1});
    GradScaler scaler;
    const auto backward = [&] { scaler.scale(sum(one.forward(Tensor::full({2, 1}, 1)))).backward(); };
    CHECK_THAT(refusal([&] { scaler.step(optimizer); }),
               test::contains("No inf checks were recorded for this optimizer"));
    CHECK_THAT(refusal([&] { scaler.update(); }), test::contains("No inf checks were recorded prior to update"));
    backward();
    scaler.unscale_(optimizer);
    CHECK_THAT(refusal([&] { scaler.unscale_(optimizer); }), test::contains("unscale_() has already been called"));
    scaler.step(optimizer);
    CHECK_THAT(refusal([&] { scaler.unscale_(optimizer); }), test::contains("unscale_() is being called after step()"));
    CHECK_THAT(refusal([&] { scaler.step(optimizer); }), test::contains("step() has already been called"));
    scaler.update();
    CHECK_THAT(refusal([&] { scaler.update(0.0); }), test::contains("invalid new_scale (0)"));
}

TEST_CASE("f16 gradients are not unscaled, as in PyTorch") {
    One one;
    to(one, DType::f16);
    SGD optimizer(one, {.lr = 0.1});
    GradScaler scaler;
    one.weight->set_grad(Tensor::full({1}, 1, DType::f16));
    CHECK_THAT(refusal([&] { scaler.unscale_(optimizer); }), test::contains("Attempting to unscale FP16 gradients"));
}

TEST_CASE("a scaler of another model and an impossible state are rejected") {
    GradScaler scaler;
    Trained first(sgd(), {.scaler = &scaler}), second(sgd(), {.scaler = &scaler});
    first.step(0);
    CHECK_THAT(refusal([&] { second.step(0); }), test::contains("the scaler belongs to another model"));
    auto state = scaler.state();
    const auto with = [&](const char* name, double value) {
        auto changed = state;
        changed[name] = value;
        return refusal([&] { scaler.load_state(changed); });
    };
    CHECK_THAT(with("_growth_tracker", 0.5), test::contains("_growth_tracker 0.5 in the state is invalid"));
    CHECK_THAT(with("_growth_tracker", -1), test::contains("expected a number of steps"));
    CHECK_THAT(with("scale", -2), test::contains("scale -2 in the state is invalid"));
    CHECK_THAT(with("growth_interval", 0), test::contains("invalid growth_interval (0)"));
    state.erase("scale");
    CHECK_THAT(refusal([&] { scaler.load_state(state); }), test::contains("the state has no number \"scale\""));
    CHECK(scaler.get_scale() == 65536);
    CHECK(with("scale", 8) == "");
    CHECK(first.step(1).skipped() == false);
    CHECK(scaler.get_scale() == 8);
}

TEST_CASE("a run that skips all its steps warns, and ends when the scale reaches 0") {
    const test::Warnings warnings;
    DataParallel model(Affine{}, Devices({Device::cpu(0)}));
    SGD optimizer(model, {.lr = 0.1});
    const float infinite = std::numeric_limits<float>::infinity();
    Loader loader(model, TensorDataset(Tensor::from(std::vector<float>(24, infinite), {4, 6}), Tensor::zeros({4, 2})),
                  {.batch_size = 4});
    GradScaler scaler;
    Runner runner(model, optimizer, loader, mse_loss, {.steps = 1000, .step = {.scaler = &scaler}});
    CHECK(test::message_of<Error>([&] { runner.run(); }) ==
          "GradScaler: the scale is 0 after 200 consecutive skipped steps; expected gradients that are finite at some "
          "scale");
    // After 50, 100 and 150 halvings; f32 cannot represent 2^(16 - 200).
    REQUIRE(warnings.texts().size() == 3);
    CHECK(warnings.texts()[0] ==
          fmt::format("GradScaler: skipped 50 consecutive steps with non-finite gradients; the scale is {}",
                      std::ldexp(1.0, 16 - 51)));  // the scale of the next step, which begins after 51
}

TEST_CASE("a custom loop that skips all its steps warns too, in steps and in the manual form") {
    const float infinite = std::numeric_limits<float>::infinity();
    const Tensor bad = Tensor::from(std::vector<float>(24, infinite), {4, 6}), good = Tensor::full({4, 6}, 0.5);
    for (const bool manual : {false, true}) {
        INFO("manual form " << manual);
        const test::Warnings warnings;
        DataParallel model(Affine{}, test::cpu_devices(2));
        SGD optimizer(model, {.lr = 0.01});
        GradScaler scaler;
        const auto step = [&](const Tensor& x, int times) {
            for (int i = 0; i < times; ++i) {
                if (!manual) {
                    model.step(optimizer, x, Tensor::zeros({4, 2}), mse_loss, {.scaler = &scaler});
                    continue;
                }
                optimizer.zero_grad();
                scaler.scale(mean(square(model.forward(x)))).backward();
                scaler.step(optimizer);
                scaler.update();
            }
        };
        step(bad, 49);
        step(good, 1);  // the count starts again
        step(bad, 49);
        step(good, 2);  // the outcome of a wrapper's step is known one step later
        CHECK(warnings.texts().empty());
        step(bad, 60);
        // 49 + 49 + 50 halvings; a wrapper's step finds one more.
        const double scale = std::ldexp(1.0, 16 - 148 - (manual ? 0 : 1));
        CHECK(warnings.texts() ==
              std::vector<std::string>{fmt::format(
                  "GradScaler: skipped 50 consecutive steps with non-finite gradients; the scale is {}", scale)});
        // f32 cannot represent 2^(16 - 198).
        CHECK_THAT(
            test::message_of<Error>([&] { step(bad, 60); }),
            test::contains("GradScaler: the scale is 0 after 100 consecutive skipped steps; expected gradients"));
        CHECK(warnings.texts().size() == 1);
        CHECK(scaler.get_scale() == 0);
    }
}

TEST_CASE("a scaler that loads a state counts skipped steps from there") {
    const test::Warnings warnings;
    Affine net;
    SGD optimizer(net);
    GradScaler scaler;
    const auto skip = [&](int times) {
        for (int i = 0; i < times; ++i) {
            optimizer.zero_grad();
            scaler.scale(mean(net.forward(Tensor::full({4, 6}, 1)) * std::numeric_limits<float>::infinity()))
                .backward();
            CHECK(!scaler.step(optimizer));
            scaler.update(1024);  // a scale set by hand does not restart the count
        }
    };
    skip(49);
    scaler.load_state(scaler.state());
    skip(49);
    CHECK(warnings.texts().empty());
    skip(1);
    CHECK(warnings.texts() ==
          std::vector<std::string>{
              "GradScaler: skipped 50 consecutive steps with non-finite gradients; the scale is 1024"});
}
