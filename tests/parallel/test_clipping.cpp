// Clipping, between the last gradient and the first update. Skipped steps: test_skipped_steps; in several processes:
// test_clipping_ranks; compared with PyTorch: tests/pytorch/check_clipping.py.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/ops/clip_grad.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/training.h"

using namespace lockstep;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// With a frozen part and an unused part.
struct Net {
    test::ConvNet used;
    Linear unused{5, 4};
    LOCKSTEP_MEMBERS(used, unused)
    Tensor forward(const Tensor& x) const { return used.forward(x); }
};
using Model = DataParallel<Net>;
using Values = std::vector<std::vector<float>>;

template <class Wrapper>
Values values_of(Wrapper& model) {
    model.synchronize();
    Values values;
    for (const NamedTensor& named : named_tensors(*model))
        values.push_back(named.member->tensor().to(DType::f32).to_vector<float>());
    return values;
}

Net fresh_net() {
    manual_seed(1);
    Net net;
    net.used.conv.bias->tensor().requires_grad_(false);
    return net;
}

test::ConvNetBatch batch_of(int step, std::int64_t rows = 20) {
    manual_seed(static_cast<std::uint64_t>(100 + step));
    return test::make_batch(rows);
}

/// A form of clipping, by `step` or by hand.
struct Clipping {
    StepOptions how;
    bool by_hand = false;
};

struct Result {
    Values values;
    std::vector<double> norms;
    bool operator==(const Result&) const = default;
};

double step_by_hand(Model& model, Optimizer& optimizer, const test::ConvNetBatch& batch, const StepOptions& how) {
    double first_norm = 0;
    optimizer.zero_grad();
    nll_loss(model.forward(batch.images), batch.labels).backward();
    for (const GradientClip& clip : how.clip)
        if (const auto* by_norm = std::get_if<ClipGradNorm>(&clip)) {
            const Tensor norm = clip_grad_norm_(optimizer, *by_norm);
            if (&clip == how.clip.data()) first_norm = norm.item();
        } else {
            clip_grad_value_(optimizer, std::get<ClipGradValue>(clip));
        }
    optimizer.step();
    return first_norm;
}

Result train(int devices, ReductionMode reduction, const Clipping& clipping, std::size_t bucket_bytes = 0) {
    Model model(fresh_net(), test::cpu_devices(devices),
                {.shards = 8, .reduction = reduction, .bucket_bytes = bucket_bytes});
    SGD optimizer(model, {.lr = 0.5, .momentum = 0.9});  // Adam's updates hardly depend on the scale of the gradients
    optimizer.add_group({"used.fc2"}, {.lr = 0.2, .momentum = 0.9});
    const bool has_norm = !clipping.how.clip.empty() && std::holds_alternative<ClipGradNorm>(clipping.how.clip.front());
    Result result;
    for (int i = 0; i < 3; ++i) {
        const test::ConvNetBatch batch = batch_of(i);
        if (clipping.by_hand) {
            result.norms.push_back(step_by_hand(model, optimizer, batch, clipping.how));
            continue;
        }
        const StepLoss loss = model.step(optimizer, batch.images, batch.labels, nll_loss, clipping.how);
        CHECK_FALSE(loss.skipped());
        result.norms.push_back(has_norm ? loss.grad_norm() : 0);
    }
    result.values = values_of(model);
    model.engine().verify_replicas();
    return result;
}

/// All forms of clipping.
const std::vector<StepOptions>& all_clips() {
    static const std::vector<StepOptions> all{
        {.clip = {ClipGradNorm{.max_norm = 0.1}}},
        {.clip = {ClipGradNorm{.max_norm = 0.01, .norm_type = infinity}}},
        {.clip = {ClipGradNorm{.max_norm = 1, .norm_type = 1, .error_if_nonfinite = true}}},
        {.clip = {ClipGradNorm{.max_norm = 0.02, .norm_type = 3.5}}},
        {.clip = {ClipGradNorm{.max_norm = 0.1, .norm_type = 3.5, .group = 1},
                  ClipGradNorm{.max_norm = 0.2, .group = 0}}},
        {.clip = {ClipGradValue{.clip_value = 0.01}}},
        {.clip = {ClipGradValue{.clip_value = 0.01, .group = 1}, ClipGradNorm{.max_norm = 0.05}}},
    };
    return all;
}

double relative_difference(const Values& a, const Values& b) {
    double difference = 0, norm = 0;
    for (std::size_t k = 0; k < a.size(); ++k)
        for (std::size_t i = 0; i < a[k].size(); ++i) {
            difference += std::pow(a[k][i] - b[k][i], 2);
            norm += std::pow(b[k][i], 2);
        }
    return std::sqrt(difference / norm);
}

}  // namespace

TEST_CASE("clipping has the same bits on any number of devices, with frozen and unused parameters") {
    const Values plain = train(1, ReductionMode::root, {}).values;
    for (const StepOptions& how : all_clips())
        for (const int form : {0, 1, 2}) {  // a step, a step in microbatches, by hand
            const char* const forms[] = {"a step", "microbatches", "by hand"};
            INFO("clip " << &how - all_clips().data() << ", " << forms[form]);
            Clipping clipping{how, form == 2};
            if (form == 1) clipping.how.accumulation_steps = 2;
            const Result expected = train(1, ReductionMode::root, clipping);
            CHECK_FALSE((expected.values == plain));  // it clips
            for (const int devices : {3, 8})
                for (const ReductionMode reduction : {ReductionMode::root, ReductionMode::slice_wise})
                    CHECK((train(devices, reduction, clipping, 512) == expected));
        }
    CHECK((train(3, ReductionMode::root, {{.skip_nonfinite = true}}).values == plain));  // changes nothing else
}

TEST_CASE("a step clips like the manual form, also in microbatches, for the model or a group") {
    for (const StepOptions& how : all_clips()) {
        INFO("clip " << &how - all_clips().data());
        const Result by_hand = train(3, ReductionMode::root, {how, true});
        for (const int parts : {1, 2}) {
            StepOptions options = how;
            options.accumulation_steps = parts;
            const Result in_one = train(3, ReductionMode::slice_wise, {options, false});
            for (std::size_t i = 0; i < in_one.norms.size(); ++i)
                CHECK(in_one.norms[i] == Approx(by_hand.norms[i]).epsilon(1e-4));
            CHECK(relative_difference(in_one.values, by_hand.values) < 1e-4);
        }
    }
}

namespace {

/// Expected gradients after clipping, in double.
std::vector<double> clipped(std::vector<double> g, double max_norm, double order, double& norm) {
    norm = 0;
    for (const double x : g)
        norm = std::isinf(order) ? std::max(norm, std::abs(x)) : norm + std::pow(std::abs(x), order);
    if (!std::isinf(order)) norm = std::pow(norm, 1 / order);
    for (double& x : g) x *= std::min(1.0, max_norm / (norm + 1e-6));
    return g;
}

std::vector<double> gradients_of(Net& net) {
    std::vector<double> all;
    for (const test::Array& array : test::gradients_of(net.used)) all.insert(all.end(), array.v.begin(), array.v.end());
    return all;
}

}  // namespace

TEST_CASE("the manual form clips gradients of plain and wrapped models in place") {
    for (const bool wrapped : {false, true})
        for (const double order : {1.0, 2.0, 3.5, infinity}) {
            INFO((wrapped ? "wrapped, order " : "plain, order ") << order);
            Net net = fresh_net();
            std::unique_ptr<Model> model;
            if (wrapped) model = std::make_unique<Model>(fresh_net(), test::cpu_devices(3));
            Net& trained = wrapped ? **model : net;
            const test::ConvNetBatch batch = batch_of(0);
            const auto backward = [&] {
                nll_loss(wrapped ? model->forward(batch.images) : net.forward(batch.images), batch.labels).backward();
            };
            backward();
            double norm = 0;
            const auto before = gradients_of(trained);
            const auto expected = clipped(before, 0.1, order, norm);
            const ClipGradNorm clip{.max_norm = 0.1, .norm_type = order};
            const Tensor found = wrapped ? clip_grad_norm_(*model, clip) : clip_grad_norm_(net, clip);
            CHECK(found.item() == Approx(norm).epsilon(1e-9));
            const auto after = gradients_of(trained);
            for (std::size_t i = 0; i < after.size(); ++i)
                CHECK(after[i] == Approx(expected[i]).epsilon(1e-6).margin(1e-9));
            if (wrapped)
                clip_grad_value_(*model, {.clip_value = 0.001});
            else
                clip_grad_value_(net, {.clip_value = 0.001});
            const auto limited = gradients_of(trained);
            for (std::size_t i = 0; i < after.size(); ++i)
                CHECK(limited[i] == Approx(std::clamp(after[i], -0.001, 0.001)).epsilon(1e-6).margin(1e-12));
        }
}

TEST_CASE("a non-finite norm refuses the step if it is an error and spreads otherwise") {
    DataParallel<test::KinkNet> model(test::seeded_kink_net(), test::cpu_devices(3),
                                      {.shards = 4, .reduction = ReductionMode::slice_wise});
    SGD sgd(model, {.lr = 0.1, .momentum = 0.9});
    const auto step = [&](bool spoiled, const StepOptions& how) {
        const Tensor x = test::kink_rows(0, spoiled);
        return model.step(sgd, x, x, test::mean_of_outputs, how);
    };
    for (const double order : {1.0, 2.0, 3.5, infinity}) {
        const StepOptions strict{.clip = {ClipGradNorm{.max_norm = 1, .norm_type = order, .error_if_nonfinite = true}}};
        CHECK_NOTHROW(step(false, strict).item());
        const auto before = test::whole_state(model, sgd);
        const StepLoss bad = step(true, strict);
        std::string message;
        try {
            static_cast<void>(bad.item());
        } catch (const StepError& error) {
            message = error.what();
        }
        CHECK_THAT(message, test::contains("the norm of the gradients is not finite; the step was not applied"));
        CHECK((test::whole_state(model, sgd) == before));
    }
    CHECK(std::isnan(step(true, {.clip = {ClipGradNorm{.max_norm = 1}}}).grad_norm()));
    CHECK(std::isnan(model->first.weight->to_vector<float>()[0]));
}

TEST_CASE("the manual form throws on a non-finite norm and keeps the gradients, or lets it spread") {
    Net net = fresh_net();
    const Parameter& weight = net.used.fc1.weight;
    weight->set_grad(Tensor::full(weight->shape(), infinity));
    CHECK_THROWS_AS(clip_grad_norm_(net, {.max_norm = 1, .error_if_nonfinite = true}), InvalidArgument);
    CHECK(weight->grad().to_vector<float>()[0] == infinity);
    CHECK(std::isinf(clip_grad_norm_(net, {.max_norm = 1}).item()));
    CHECK(std::isnan(weight->grad().to_vector<float>()[0]));
}

TEST_CASE("invalid clipping is rejected before anything runs") {
    Model model(fresh_net(), test::cpu_devices(1));
    SGD sgd(model);
    const test::ConvNetBatch batch = batch_of(0);
    const auto refused = [&](const GradientClip& clip) {
        try {
            model.step(sgd, batch.images, batch.labels, nll_loss, {.clip = {clip}});
        } catch (const InvalidArgument& error) {
            return std::string(error.what());
        }
        return std::string("nothing was thrown");
    };
    CHECK(refused(ClipGradNorm{.max_norm = -1}) == "clip_grad_norm_: invalid max_norm (-1); expected 0 or more");
    CHECK(refused(ClipGradNorm{.max_norm = 1, .norm_type = 0}) ==
          "clip_grad_norm_: invalid norm_type (0); expected a number above 0, or infinity");
    CHECK(refused(ClipGradValue{.clip_value = NAN}) ==
          "clip_grad_value_: invalid clip_value (nan); expected 0 or more");
    CHECK(refused(ClipGradNorm{.max_norm = 1, .group = 1}) ==
          "step: gradients of group 1 are to be clipped, but the optimizer has 1; expected a group counted from 0, or "
          "-1 for all");
    const StepLoss loss = model.step(sgd, batch.images, batch.labels, nll_loss);
    CHECK_THROWS_AS(loss.grad_norm(), InvalidArgument);
}
