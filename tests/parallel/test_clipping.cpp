// What a step does between its last gradient and its first update: clipping, and skipping a step.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "lockstep/ops/adam.h"
#include "lockstep/ops/clip_grad.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/parallel/file_fixture.h"
#include "lockstep/tests/parallel/small_net.h"

using namespace lockstep;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
using Model = DataParallel<small_net::Net>;
using Values = std::vector<std::vector<float>>;

template <class Wrapper>
Values values_of(Wrapper& model) {
    model.synchronize();
    Values values;
    for (const NamedTensor& named : named_tensors(*model))
        values.push_back(named.member->tensor().to(DType::f32).to_vector<float>());
    return values;
}

small_net::Net fresh_net() {
    manual_seed(1);
    return {};
}

small_net::Batch batch_of(int step, std::int64_t rows = 20) {
    manual_seed(static_cast<std::uint64_t>(100 + step));
    return small_net::make_batch(rows);
}

struct Result {
    Values values;
    std::vector<double> norms;
    bool operator==(const Result&) const = default;
};

Result train(int devices, ReductionMode reduction, const StepOptions& how, std::size_t bucket_bytes = 0) {
    Model model(fresh_net(), small_net::devices(devices),
                {.shards = 8, .reduction = reduction, .bucket_bytes = bucket_bytes});
    AdamW optimizer(model, {.lr = 0.01});
    optimizer.add_group({"fc2"}, {.lr = 0.02});
    Result result;
    const GradientClip* first = how.clip.empty() ? nullptr : &how.clip.front();
    for (int i = 0; i < 4; ++i) {
        const small_net::Batch batch = batch_of(i);
        const StepLoss loss = model.step(optimizer, batch.images, batch.labels, nll_loss, how);
        if (first && std::holds_alternative<ClipGradNorm>(*first)) result.norms.push_back(loss.grad_norm());
        CHECK_FALSE(loss.skipped());
    }
    result.values = values_of(model);
    model.engine().verify_replicas();
    return result;
}

/// Every way to clip.
const std::vector<StepOptions>& all_clips() {
    static const std::vector<StepOptions> all{
        {.clip = {ClipGradNorm{.max_norm = 0.1}}},
        {.clip = {ClipGradNorm{.max_norm = 0.05, .norm_type = infinity}}},
        {.clip = {ClipGradNorm{.max_norm = 1, .norm_type = 1, .error_if_nonfinite = true}}},
        {.clip = {ClipGradNorm{.max_norm = 0.1, .norm_type = 3.5, .group = 1},
                  ClipGradNorm{.max_norm = 0.2, .group = 0}}},
        {.clip = {ClipGradValue{.clip_value = 0.01}}},
        {.clip = {ClipGradValue{.clip_value = 0.01, .group = 1}, ClipGradNorm{.max_norm = 0.05}}},
        {.skip_nonfinite = true},
    };
    return all;
}

}  // namespace

TEST_CASE("clipping has the same bits on any number of devices") {
    Values plain = train(1, ReductionMode::root, {}).values;
    for (const StepOptions& how : all_clips())
        for (const int parts : {1, 2}) {
            StepOptions options = how;
            options.micro_steps = parts;
            INFO("clip " << &how - all_clips().data() << ", microbatches " << parts);
            const Result expected = train(1, ReductionMode::root, options);
            if (!how.clip.empty()) CHECK_FALSE((expected.values == plain));  // it clips
            if (how.clip.empty() && parts == 1) CHECK((expected.values == plain));
            for (const int devices : {3, 8})
                for (const ReductionMode reduction : {ReductionMode::root, ReductionMode::slice_wise})
                    CHECK((train(devices, reduction, options, 512) == expected));
        }
}

namespace {

/// What clipping must leave of these gradients, in double.
std::vector<double> clipped(std::vector<double> g, double max_norm, double order, double& norm) {
    norm = 0;
    for (const double x : g)
        norm = std::isinf(order) ? std::max(norm, std::abs(x)) : norm + std::pow(std::abs(x), order);
    if (!std::isinf(order)) norm = std::pow(norm, 1 / order);
    for (double& x : g) x *= std::min(1.0, max_norm / (norm + 1e-6));
    return g;
}

std::vector<double> gradients_of(small_net::Net& net) {
    std::vector<double> all;
    for (const small_net::Array& array : small_net::gradients_of(net))
        all.insert(all.end(), array.v.begin(), array.v.end());
    return all;
}

}  // namespace

TEST_CASE("the manual form clips gradients where they lie, of plain and wrapped models") {
    for (const bool wrapped : {false, true})
        for (const double order : {1.0, 2.0, 3.0, infinity}) {
            INFO((wrapped ? "wrapped, order " : "plain, order ") << order);
            small_net::Net net = fresh_net();
            std::unique_ptr<Model> model;
            if (wrapped) model = std::make_unique<Model>(fresh_net(), small_net::devices(3));
            small_net::Net& trained = wrapped ? **model : net;
            const small_net::Batch batch = batch_of(0);
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

TEST_CASE("a step clips as the manual form does") {
    Model in_one(fresh_net(), small_net::devices(3), {.shards = 8}),
        by_hand(fresh_net(), small_net::devices(3), {.shards = 8});
    SGD first(in_one, {.lr = 0.5}), second(by_hand, {.lr = 0.5});
    for (int i = 0; i < 3; ++i) {
        const small_net::Batch batch = batch_of(i);
        const StepLoss loss =
            in_one.step(first, batch.images, batch.labels, nll_loss, {.clip = {ClipGradNorm{.max_norm = 0.1}}});
        second.zero_grad();
        nll_loss(by_hand.forward(batch.images), batch.labels).backward();
        const Tensor norm = clip_grad_norm_(second, {.max_norm = 0.1});
        second.step();
        CHECK(loss.grad_norm() == Approx(norm.item()).epsilon(1e-5));
    }
    const Values a = values_of(in_one), b = values_of(by_hand);
    for (std::size_t k = 0; k < a.size(); ++k)
        for (std::size_t i = 0; i < a[k].size(); ++i) CHECK(a[k][i] == Approx(b[k][i]).epsilon(1e-4).margin(1e-6));
}

namespace {

/// Whose gradient is not finite, at a finite loss, where a row is 0.
struct Kink {
    Linear line{4, 3, false};
    BatchNorm2d norm{1, {.affine = false}};
    LOCKSTEP_MEMBERS(line, norm)
    Tensor forward(const Tensor& x) { return sqrt(square(line(norm(x.reshape({x.size(0), 1, 2, 2})).flatten(1)))); }
};

Tensor rows(bool spoiled) {
    std::vector<float> values(16 * 4);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = spoiled ? 0.25f : static_cast<float>(i % 7) - 3;
    return Tensor::from(values, {16, 4});
}

Loss size_of_outputs(const Tensor& output, const Tensor&) { return mean_loss(output); }

}  // namespace

TEST_CASE("a step that is skipped leaves weights and all state as they were, on every replica") {
    for (const ReductionMode reduction : {ReductionMode::root, ReductionMode::slice_wise})
        for (const int parts : {1, 2}) {
            INFO((reduction == ReductionMode::root ? "root, " : "slices, ") << parts << " microbatches");
            manual_seed(3);
            DataParallel<Kink> model(Kink{}, small_net::devices(3), {.shards = 4, .reduction = reduction});
            Adam adam(model, {.lr = 0.1});
            const StepOptions how{.micro_steps = parts, .clip = {ClipGradNorm{.max_norm = 1}}, .skip_nonfinite = true};
            const auto step = [&](bool spoiled) {
                return model.step(adam, rows(spoiled), rows(false), size_of_outputs, how);
            };
            CHECK_FALSE(step(false).skipped());
            const Values before = values_of(model);
            const StepLoss bad = step(true);
            CHECK(bad.skipped());
            CHECK(std::isfinite(bad.item()));
            CHECK((values_of(model) == before));
            model.engine().verify_replicas();
            CHECK(model.engine().steps_done() == 1);
            // With the state as it was, the next step is the one that would have come anyway; nobody waits in between.
            const StepLoss good = step(false), bad_again = step(true), better = step(false);
            CHECK_FALSE(good.skipped());
            CHECK(bad_again.skipped());
            CHECK_FALSE(better.skipped());
            manual_seed(3);
            DataParallel<Kink> straight(Kink{}, small_net::devices(1), {.shards = 4});
            Adam other(straight, {.lr = 0.1});
            for (int i = 0; i < 3; ++i) straight.step(other, rows(false), rows(false), size_of_outputs, how);
            CHECK((values_of(straight) == values_of(model)));
        }
}

TEST_CASE("a norm that is not finite refuses the step where that is an error, and spreads where it is not") {
    manual_seed(3);
    DataParallel<Kink> model(Kink{}, small_net::devices(2), {.shards = 4});
    SGD sgd(model, {.lr = 0.1, .momentum = 0.9});
    const StepOptions strict{.clip = {ClipGradNorm{.max_norm = 1, .error_if_nonfinite = true}}};
    model.step(sgd, rows(false), rows(false), size_of_outputs, strict);
    const Values before = values_of(model);
    const StepLoss bad = model.step(sgd, rows(true), rows(false), size_of_outputs, strict);
    std::string message;
    try {
        static_cast<void>(bad.item());
    } catch (const StepError& error) {
        message = error.what();
    }
    CHECK_THAT(message, test::contains("the norm of the gradients is not finite; the step was not taken"));
    CHECK((values_of(model) == before));
    model.step(sgd, rows(true), rows(false), size_of_outputs, {.clip = {ClipGradNorm{.max_norm = 1}}});
    model.synchronize();
    CHECK(std::isnan(model->line.weight->to_vector<float>()[0]));

    small_net::Net net = fresh_net();
    net.fc1.weight->set_grad(Tensor::full(net.fc1.weight->shape(), infinity));
    CHECK_THROWS_AS(clip_grad_norm_(net, {.max_norm = 1, .error_if_nonfinite = true}), InvalidArgument);
    CHECK(net.fc1.weight->grad().to_vector<float>()[0] == infinity);
}

TEST_CASE("what cannot be clipped is refused before anything runs") {
    Model model(fresh_net(), small_net::devices(1));
    SGD sgd(model);
    const small_net::Batch batch = batch_of(0);
    const auto refused = [&](const GradientClip& clip) {
        try {
            model.step(sgd, batch.images, batch.labels, nll_loss, {.clip = {clip}});
        } catch (const InvalidArgument& error) {
            return std::string(error.what());
        }
        return std::string("nothing was thrown");
    };
    CHECK(refused(ClipGradNorm{.max_norm = -1}) == "clip_grad_norm_: max_norm -1 must not be negative");
    CHECK(refused(ClipGradNorm{.max_norm = 1, .norm_type = 0}) ==
          "clip_grad_norm_: norm_type 0 must be above 0, or infinity");
    CHECK(refused(ClipGradValue{.clip_value = NAN}) == "clip_grad_value_: clip_value nan must not be negative");
    CHECK(refused(ClipGradNorm{.max_norm = 1, .group = 1}) ==
          "step: gradients of group 1 are to be clipped, the optimizer has 1; count from 0, or give -1 for all");
    const StepLoss loss = model.step(sgd, batch.images, batch.labels, nll_loss);
    CHECK_THROWS_AS(loss.grad_norm(), InvalidArgument);
}
