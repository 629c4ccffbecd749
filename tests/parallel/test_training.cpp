// Effect of a step on the parameters on several devices: settings, groups, frozen, unused and tied parameters,
// constants.
#include <map>
#include <string>

#include "lockstep/ops/sgd.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/nets.h"

namespace ls = lockstep;
using namespace lockstep::test;
namespace reference = ls::reference;

namespace {

/// Linear regression, and its twin in double precision with torch.optim.SGD's rule.
struct Regression {
    ls::Linear fc{4, 3};
    LOCKSTEP_MEMBERS(fc)
    ls::Tensor forward(const ls::Tensor& x) const { return fc(x); }
};

/// Gradients of the mean squared error of linear(x) to y.
std::vector<Array> regression_gradients(const std::vector<Array>& p, const Array& x, const Array& y) {
    Array dy = reference::linear(x, p[0], p[1]);
    for (std::ptrdiff_t i = 0; i < dy.size(); ++i) dy[i] = 2 * (dy[i] - y[i]) / static_cast<double>(dy.size());
    const auto all = reference::linear_gradients(x, p[0], dy);
    return {all[1], all[2]};
}

struct DoubleSgd {
    ls::SgdOptions options;
    std::map<const Array*, Array> momentum = {};
    void update(Array& p, Array g) {
        for (std::ptrdiff_t i = 0; i < p.size(); ++i) g[i] += options.weight_decay * p[i];
        if (options.maximize) {
            // PyTorch negates the gradient before the decay is added.
            for (std::ptrdiff_t i = 0; i < p.size(); ++i)
                g[i] = -(g[i] - options.weight_decay * p[i]) + options.weight_decay * p[i];
        }
        Array direction = g;
        if (options.momentum != 0) {
            const bool first = !momentum.contains(&p);
            Array& buffer = momentum[&p];
            if (first) buffer = g;
            for (std::ptrdiff_t i = 0; i < p.size() && !first; ++i)
                buffer[i] = options.momentum * buffer[i] + (1 - options.dampening) * g[i];
            for (std::ptrdiff_t i = 0; i < p.size(); ++i)
                direction[i] = options.nesterov ? g[i] + options.momentum * buffer[i] : buffer[i];
        }
        for (std::ptrdiff_t i = 0; i < p.size(); ++i) p[i] -= options.lr * direction[i];
    }
};

template <class Model, class Input, class Target, class Loss>
void train(ls::DataParallel<Model>& model, ls::SGD& sgd, const Input& x, const Target& y, const Loss& loss, int steps) {
    for (int i = 0; i < steps; ++i) model.step(sgd, x, y, loss);
    model.synchronize();
}

std::vector<float> values(const ls::Tensor& tensor) { return tensor.detach().to_vector<float>(); }

}  // namespace

TEST_CASE("momentum, dampening, Nesterov, decay and maximize follow PyTorch's rule over several steps") {
    const std::vector<ls::SgdOptions> all{
        {.lr = 0.1},
        {.lr = 0.1, .momentum = 0.9},
        {.lr = 0.1, .momentum = 0.9, .dampening = 0.3},
        {.lr = 0.1, .momentum = 0.8, .weight_decay = 0.05, .nesterov = true},
        {.lr = 0.05, .momentum = 0.5, .dampening = 0.1, .weight_decay = 0.1, .maximize = true},
    };
    ls::manual_seed(11);
    for (const ls::SgdOptions& options : all)
        for (const auto mode : {ls::ReductionMode::root, ls::ReductionMode::slice_wise}) {
            Regression net;
            const ls::Tensor x = ls::Tensor::randn({11, 4}), y = ls::Tensor::randn({11, 3});
            std::vector<Array> expected = parameters_of(net);
            DoubleSgd reference{options};
            ls::DataParallel<Regression> model(net, cpu_devices(3), {.reduction = mode});
            ls::SGD sgd(model, options);
            for (int step = 0; step < 6; ++step) {
                if (step == 3) {  // a changed learning rate takes effect with the next step
                    sgd.set_lr(0.02);
                    reference.options.lr = 0.02;
                }
                model.step(sgd, x, y, ls::mse_loss);
                const auto gradients = regression_gradients(expected, array_of(x), array_of(y));
                for (std::size_t i = 0; i < 2; ++i) reference.update(expected[i], gradients[i]);
            }
            CHECK(relative_error(parameters_of(*model), expected) < 1e-6);
            CHECK(model.engine().traces() == 2);
            model.engine().verify_replicas();
        }
}

TEST_CASE("parameter groups have separate settings") {
    ls::manual_seed(12);
    Regression net;
    const ls::Tensor x = ls::Tensor::randn({8, 4}), y = ls::Tensor::randn({8, 3});
    std::vector<Array> expected = parameters_of(net);
    DoubleSgd weights{{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1}}, biases{{.lr = 0.02}};
    ls::DataParallel<Regression> model(net, cpu_devices(4));
    ls::SGD sgd(model, weights.options);
    CHECK(sgd.add_group({"fc.bias"}, biases.options) == 1);
    for (int step = 0; step < 5; ++step) {
        model.step(sgd, x, y, ls::mse_loss);
        const auto gradients = regression_gradients(expected, array_of(x), array_of(y));
        weights.update(expected[0], gradients[0]);
        biases.update(expected[1], gradients[1]);
    }
    CHECK(relative_error(parameters_of(*model), expected) < 1e-6);
}

TEST_CASE("frozen parameters are unchanged: no update, no decay, no momentum") {
    ls::manual_seed(13);
    ConvNet net;
    const ConvNetBatch batch = make_batch(9);
    for (const auto mode : {ls::ReductionMode::root, ls::ReductionMode::slice_wise}) {
        ls::DataParallel<ConvNet> model(net, cpu_devices(3), {.reduction = mode});
        ls::SGD sgd(model, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1});
        train(model, sgd, batch.images, batch.labels, ls::nll_loss, 2);  // the momentum exists
        model->fc1.weight->requires_grad_(false);
        model->conv.bias->tensor().requires_grad_(false);
        const auto fc1 = values(model->fc1.weight), conv = values(*model->conv.bias), fc2 = values(model->fc2.weight);
        train(model, sgd, batch.images, batch.labels, ls::nll_loss, 3);
        CHECK(values(model->fc1.weight) == fc1);
        CHECK(values(*model->conv.bias) == conv);
        CHECK(values(model->fc2.weight) != fc2);
        sgd.zero_grad();
        ls::nll_loss(model(batch.images), batch.labels.to(ls::Device::cpu(0))).backward();
        CHECK_FALSE(model->fc1.weight->grad().defined());
        sgd.step();
        CHECK(values(model->fc1.weight) == fc1);
        CHECK(values(*model->conv.bias) == conv);
        model->fc1.weight->requires_grad_(true);
        train(model, sgd, batch.images, batch.labels, ls::nll_loss, 1);
        CHECK(values(model->fc1.weight) != fc1);
        CHECK(values(*model->conv.bias) == conv);
        model.engine().verify_replicas();
    }
}

namespace {
/// Uses one of two layers, selected by a member.
struct Choice {
    ls::Linear first{4, 3}, second{4, 3};
    LOCKSTEP_MEMBERS(first, second)
    ls::Tensor forward(const ls::Tensor& x, bool use_first) const { return use_first ? first(x) : second(x); }
};
}  // namespace

TEST_CASE("parameters without a gradient from any shard are unchanged") {
    ls::manual_seed(14);
    const ls::Tensor x = ls::Tensor::randn({7, 4}), y = ls::Tensor::randn({7, 3});
    for (const auto mode : {ls::ReductionMode::root, ls::ReductionMode::slice_wise}) {
        Choice net;
        std::vector<Array> expected = parameters_of(net);
        DoubleSgd reference{{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1}};
        ls::DataParallel<Choice> model(net, cpu_devices(3), {.reduction = mode});
        ls::SGD sgd(model, reference.options);
        // `second` retains its momentum during steps that do not use it, and gets its first one late.
        for (const bool use_first : {true, true, false, true, false, false}) {
            model.step(sgd, std::tuple(x, use_first), y, ls::mse_loss);
            const std::size_t at = use_first ? 0 : 2;
            const auto gradients = regression_gradients({expected[at], expected[at + 1]}, array_of(x), array_of(y));
            reference.update(expected[at], gradients[0]);
            reference.update(expected[at + 1], gradients[1]);
            CHECK(relative_error(parameters_of(*model), expected) < 1e-6);
        }
        // The same with the manual step.
        const auto second = values(model->second.weight);
        sgd.zero_grad();
        ls::mse_loss(model(x, true), y.to(ls::Device::cpu(0))).backward();
        CHECK_FALSE(model->second.weight->grad().defined());
        sgd.step();
        CHECK(values(model->second.weight) == second);
        model.engine().verify_replicas();
    }
}

namespace {
struct Tied {
    ls::Linear in{4, 4, false}, out{4, 4, false};
    LOCKSTEP_MEMBERS(in, out)
    Tied() { ls::tie(in.weight, out.weight); }
    ls::Tensor forward(const ls::Tensor& x) const { return out(in(x)); }
};
}  // namespace

TEST_CASE("tied parameters are one: gradients of both uses add up, and copies stay tied") {
    ls::manual_seed(15);
    Tied net;
    const ls::Tensor x = ls::Tensor::randn({9, 4}), y = ls::Tensor::randn({9, 4});
    Array w = array_of(net.in.weight);
    const Array none({4});
    ls::DataParallel<Tied> model(net, cpu_devices(3));
    CHECK(model->in.weight.identity() == model->out.weight.identity());
    ls::SGD sgd(model, {.lr = 0.1});
    for (int step = 0; step < 3; ++step) {
        model.step(sgd, x, y, ls::mse_loss);
        const Array hidden = reference::linear(array_of(x), w, none);
        Array dy = reference::linear(hidden, w, none);
        for (std::ptrdiff_t i = 0; i < dy.size(); ++i)
            dy[i] = 2 * (dy[i] - array_of(y)[i]) / static_cast<double>(dy.size());
        const auto second = reference::linear_gradients(hidden, w, dy);
        const auto first = reference::linear_gradients(array_of(x), w, second[0]);
        for (std::ptrdiff_t i = 0; i < w.size(); ++i) w[i] -= 0.1 * (first[1][i] + second[1][i]);
    }
    CHECK(relative_error({array_of(model->in.weight)}, {w}) < 1e-6);
    CHECK(relative_error({array_of(model->out.weight)}, {w}) < 1e-6);
}

TEST_CASE("tensors captured by a loss are constants and are copied again after a write") {
    ls::manual_seed(16);
    ConvNet net;
    const ConvNetBatch batch = make_batch(10);
    const ls::Tensor weights = ls::Tensor::from(std::vector<float>{1, 2, 3, 4, 5}, {5});
    ls::DataParallel<ConvNet> model(net, cpu_devices(3));
    ls::SGD sgd(model, {.lr = 0});
    const auto loss = [weights](const ls::Tensor& output, const ls::Tensor& target) {
        return ls::NllLoss{{.weight = weights}}(output, target);
    };
    const auto expected = [&](const std::vector<double>& class_weights) {
        const auto run = reference::run_conv_net(parameters_of(net), array_of(batch.images));
        Array dy;
        return reference::conv_net_loss({.class_weights = class_weights}, run.log_probabilities, batch.classes, dy);
    };
    CHECK(model.step(sgd, batch.images, batch.labels, loss).item() == Approx(expected({1, 2, 3, 4, 5})).epsilon(1e-5));
    weights.copy_(ls::Tensor::from(std::vector<float>{5, 0.5, 0.1f, 4, 1}, {5}));
    CHECK(model.step(sgd, batch.images, batch.labels, loss).item() ==
          Approx(expected({5, 0.5, 0.1f, 4, 1})).epsilon(1e-5));
    weights.data<float>()[0] = 0;
    CHECK(model.step(sgd, batch.images, batch.labels, loss).item() ==
          Approx(expected({0, 0.5, 0.1f, 4, 1})).epsilon(1e-5));
    CHECK(model.engine().traces() == 2);
    // Losses with equal values, created again in every step, are one program.
    for (int i = 0; i < 3; ++i)
        model.step(sgd, batch.images, batch.labels, ls::NllLoss{{.weight = weights, .ignore_index = 3}});
    CHECK(model.engine().traces() == 4);
}

TEST_CASE("learning rates, seeds and data change no program") {
    ls::manual_seed(17);
    ls::DataParallel<ConvNet> model(ConvNet{}, cpu_devices(3));
    ls::SGD sgd(model, {.lr = 0.1, .momentum = 0.5});
    for (int epoch = 0; epoch < 3; ++epoch) {
        for (const std::int64_t rows : {9, 9, 4}) {
            const ConvNetBatch batch = make_batch(rows);
            sgd.set_lr(0.1 / (epoch + 1));
            model.step(sgd, batch.images, batch.labels, ls::nll_loss);
        }
        model.eval();
        const ls::NoGrad no_grad;
        (void)model(make_batch(9).images);
        model.train();
    }
    // Full shards of 9 and of 4 rows, evaluation of 9: shards of 3; 2, the last of them full.
    CHECK(model.engine().traces() == 3);
    CHECK(model.engine().steps_done() == 9);
}
