// Hooks of layers, parametrized weights, and buffers that forward writes, in eager use and in steps.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/ops/any_module.h"
#include "lockstep/ops/hooks.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/parametrizations.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/parametrized_net.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

using Floats = std::vector<float>;

std::vector<std::string> names_of(auto& module) {
    std::vector<std::string> names;
    for (const NamedTensor& named : named_tensors(module)) names.push_back(named.name);
    return names;
}

Floats weights_of(auto& module) {
    Floats all;
    for (const NamedTensor& named : named_tensors(module))
        for (const float value : named.member->tensor().to(Device::host()).to(DType::f32).to_vector<float>())
            all.push_back(value);
    return all;
}

struct HookedNet {
    Hooked<Linear> fc{3, 2};
    ModuleBuffer seen{Tensor::zeros({2})};
    LOCKSTEP_MEMBERS(fc, seen)
    Tensor forward(const Tensor& x) { return fc(x); }
};

struct FrozenNet {
    WeightNorm<Linear> first;
    SpectralNorm<Linear> second;
    Linear last{2, 1};
    LOCKSTEP_MEMBERS(first, second, last)
    Tensor forward(const Tensor& x) { return last(first(x) + second(x)); }
};

/// Counts the threads that are in its forward.
struct Counted {
    Parameter weight{Tensor::randn({3, 3})};
    LOCKSTEP_MEMBERS(weight)
    static inline std::atomic<int> inside{0}, most{0};
    Tensor forward(const Tensor& x) const {
        most = std::max(most.load(), ++inside);
        std::this_thread::yield();
        const Tensor y = matmul(x, weight);
        --inside;
        return y;
    }
};

/// The average of all rows so far.
struct AveragingNet {
    Linear fc{2, 2};
    ModuleBuffer average{Tensor::zeros({2})};
    LOCKSTEP_MEMBERS(fc, average)
    Tensor forward(const Tensor& x) {
        const Tensor total = sum_over_shards(sum(x.detach(), 0));
        average->copy_(average.tensor() * 0.5 + total);
        return fc(x) + average.tensor();
    }
};

void clear(const Parameter& parameter) {
    const NoGrad no_grad;
    parameter->zero_();
}

struct TypedNet {
    Linear fc{2, 2};
    ModuleBuffer half{Tensor::zeros({2}, DType::f16)}, count{Tensor::zeros({}, DType::i64)};
    ModuleBuffer flags{Tensor::zeros({2}, DType::boolean)}, wide{Tensor::zeros({2, 2}, DType::f64)};
    LOCKSTEP_MEMBERS(fc, half, count, flags, wide)
    Tensor forward(const Tensor& x) {
        half->copy_(sum_over_shards(sum(x, 0)));
        count->copy_(count.tensor() + 1);
        flags->fill_(1);
        wide->slice(0, 1, 2).copy_(sum_over_shards(sum(x, 0)));  // the second row
        return fc(x);
    }
};

struct ChosenNet {
    std::vector<AnyModule> layers;
    LOCKSTEP_MEMBERS(layers)
    Tensor forward(const Tensor& x) { return layers[0](x); }
};

/// Writes a parameter, a tensor that is not a member, or a part of a buffer.
struct WritingNet {
    Linear fc{2, 2};
    ModuleBuffer table{Tensor::zeros({2, 2})};
    Tensor outside = Tensor::zeros({2});
    int kind = 0;
    LOCKSTEP_MEMBERS(fc, table)
    void describe(Signature& signature) const { signature.add(kind); }
    Tensor forward(const Tensor& x) {
        const NoGrad no_grad;
        if (kind == 0) fc.bias.value()->fill_(1);
        if (kind == 1) outside.copy_(sum(x, 0));
        if (kind == 2) table->select(1, 0).copy_(sum(x, 0));
        return x;
    }
};

/// |row| of each row of a matrix, in double.
std::vector<double> lengths_of_rows(const Floats& matrix, std::size_t columns) {
    std::vector<double> lengths;
    for (std::size_t row = 0; row < matrix.size() / columns; ++row) {
        double sum = 0;
        for (std::size_t i = 0; i < columns; ++i) sum += std::pow(matrix[row * columns + i], 2);
        lengths.push_back(std::sqrt(sum));
    }
    return lengths;
}

struct SpectralReference {
    std::vector<double> matrix, u, v;

    static void normalize(std::vector<double>& x) {
        double sum = 0;
        for (const double value : x) sum += value * value;
        for (double& value : x) value /= std::max(std::sqrt(sum), 1e-12);
    }
    std::vector<double> times_v() const {
        std::vector<double> y(u.size());
        for (std::size_t i = 0; i < u.size(); ++i)
            for (std::size_t j = 0; j < v.size(); ++j) y[i] += matrix[i * v.size() + j] * v[j];
        return y;
    }
    void iterate() {
        u = times_v();
        normalize(u);
        std::fill(v.begin(), v.end(), 0);
        for (std::size_t i = 0; i < u.size(); ++i)
            for (std::size_t j = 0; j < v.size(); ++j) v[j] += matrix[i * v.size() + j] * u[i];
        normalize(v);
    }
    double sigma() const {
        const std::vector<double> product = times_v();
        double sum = 0;
        for (std::size_t i = 0; i < u.size(); ++i) sum += u[i] * product[i];
        return sum;
    }
};

std::vector<double> doubles(const Tensor& x) {
    const Floats values = x.to(Device::host()).to_vector<float>();
    return {values.begin(), values.end()};
}

template <class Layer>
SpectralReference reference_of(const SpectralNorm<Layer>& layer) {
    const auto& weight = layer.parametrizations.weight;
    return {doubles(weight.original), doubles(weight.vectors._u), doubles(weight.vectors._v)};
}

void check_close(const Floats& found, const std::vector<double>& expected) {
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i] == Approx(expected[i]).margin(1e-6));
}

}  // namespace

TEST_CASE("hooks see and replace inputs and outputs in order, until they are removed") {
    manual_seed(1);
    Hooked<Linear> layer{2, 2};
    CHECK(names_of(layer) == std::vector<std::string>{"weight", "bias"});
    const Tensor x = Tensor::from(Floats{1, 2}, {1, 2}), plain = layer(x);
    std::string calls;
    const HookHandle doubles_input = layer.register_forward_pre_hook([&](const Linear&, const Tensor& input) {
        calls += "a";
        return input * 2;
    });
    layer.register_forward_pre_hook([&](const Linear&, const Tensor& input) {
        calls += "b";
        CHECK(input.select(0, 0).select(0, 0).item() == (calls == "ab" ? 2 : 1));
    });
    const HookHandle negates = layer.register_forward_hook([&](const Linear& of, const Tensor& input, const Tensor& y) {
        calls += "c";
        CHECK(linear(input, of.weight, *of.bias).to_vector<float>() == y.to_vector<float>());
        return neg(y);
    });
    const Hooked<Linear> copy = layer;
    CHECK(copy(x).to_vector<float>() == neg(layer.Linear::forward(x * 2)).to_vector<float>());
    CHECK(calls == "abc");
    calls.clear();
    CHECK(layer.remove_hook(doubles_input));
    CHECK_FALSE(layer.remove_hook(doubles_input));
    CHECK(layer(x).to_vector<float>() == neg(plain).to_vector<float>());
    CHECK(calls == "bc");
    CHECK(layer.remove_hook(negates));
    CHECK(layer(x).to_vector<float>() == plain.to_vector<float>());
    calls.clear();
    CHECK(copy(x).to_vector<float>() != plain.to_vector<float>());
}

TEST_CASE("hooks are part of the steps of a wrapper, and may write buffers") {
    manual_seed(2);
    DataParallel<HookedNet> model(HookedNet{}, cpu_devices(2), {.shards = 2});
    SGD sgd(model, {.lr = 0});
    const Tensor x = Tensor::randn({4, 3}), y = Tensor::zeros({4, 2});
    const double plain = model.step(sgd, x, y, mse_loss).item();
    const HookHandle handle =
        model->fc.register_forward_hook([&seen = model->seen](const Linear&, const Tensor&, const Tensor& output) {
            seen->copy_(sum_over_shards(sum(output.detach(), 0)));
            return output * 2;
        });
    CHECK(model.step(sgd, x, y, mse_loss).item() == Approx(4 * plain));
    const Tensor outputs =
        linear(x, model->fc.weight.tensor().to(Device::host()), model->fc.bias->tensor().to(Device::host()));
    check_close(model->seen->to(Device::host()).to_vector<float>(), doubles(sum(outputs, 0)));
    model->fc.remove_hook(handle);
    CHECK(model.step(sgd, x, y, mse_loss).item() == Approx(plain));
}

TEST_CASE("hooks see the gradients of outputs, and do not write buffers with them in a step") {
    manual_seed(2);
    HookedNet net;
    Tensor gradient;
    std::vector<std::string> shapes;
    net.fc.register_forward_hook([&](const Linear&, const Tensor&, const Tensor& output) {
        output.register_hook([&](const Tensor& dy) {
            gradient = dy;
            shapes.push_back(dy.shape().str());
        });
    });
    const Tensor x = Tensor::randn({4, 3}), y = Tensor::zeros({4, 2});
    sum(net.forward(x) * 3).backward();
    CHECK(gradient.to_vector<float>() == Floats(8, 3));
    gradient = {};
    DataParallel<HookedNet> model(net, cpu_devices(1));
    SGD sgd(model, {.lr = 0.1});
    (void)model.step(sgd, x, y, mse_loss).item();
    CHECK(shapes.size() > 1);
    CHECK(shapes.back() == "(4, 2)");
    gradient = {};
    model->fc.register_forward_hook([&seen = model->seen](const Linear&, const Tensor&, const Tensor& output) {
        output.register_hook([&seen](const Tensor& dy) { seen->copy_(sum(dy, 0)); });
    });
    CHECK_THAT(message_of<InvalidArgument>([&] { model.step(sgd, x, y, mse_loss); }),
               contains("copy_: a hook of a gradient writes a tensor of shape (2,) from outside"));
}

TEST_CASE("full backward hooks see and replace the gradients of a layer's output and input") {
    manual_seed(2);
    HookedNet net;
    const Tensor x = Tensor::randn({4, 3}).requires_grad_();
    const Tensor weight = net.fc.weight.tensor();
    Tensor seen_input, seen_output;
    std::string order;
    const HookHandle watch =
        net.fc.register_full_backward_hook([&](const Tensor& grad_input, const Tensor& grad_output) {
            seen_input = grad_input;
            seen_output = grad_output;
            order += 'a';
        });
    sum(net.forward(x) * 3).backward();
    const std::vector<double> columns = doubles(sum(weight.detach(), 0) * 3);
    std::vector<double> expected;
    for (int row = 0; row < 4; ++row) expected.insert(expected.end(), columns.begin(), columns.end());
    check_close(seen_input.to_vector<float>(), expected);
    CHECK(seen_output.to_vector<float>() == Floats(8, 3));
    check_close(x.grad().to_vector<float>(), expected);

    // In the order of registration; each sees the gradient that the one before it returned.
    net.fc.register_full_backward_pre_hook([&](const Tensor& grad_output) {
        order += 'p';
        return grad_output * 2;
    });
    net.fc.register_full_backward_hook([&](const Tensor& grad_input, const Tensor&) {
        order += 'b';
        return grad_input * 5;
    });
    x.set_grad({});
    weight.set_grad({});
    order.clear();
    sum(net.forward(x) * 3).backward();
    CHECK(order == "pab");
    CHECK(seen_output.to_vector<float>() == Floats(8, 6));
    for (double& value : expected) value *= 2;
    check_close(seen_input.to_vector<float>(), expected);
    for (double& value : expected) value *= 5;
    check_close(x.grad().to_vector<float>(), expected);
    const std::vector<double> of_row = doubles(sum(x.detach(), 0) * 6);
    std::vector<double> of_weight = of_row;
    of_weight.insert(of_weight.end(), of_row.begin(), of_row.end());
    check_close(weight.grad().to_vector<float>(), of_weight);

    CHECK(net.fc.remove_hook(watch));
    CHECK_FALSE(net.fc.remove_hook(watch));
    order.clear();
    sum(net.forward(x)).backward();
    CHECK(order == "pb");
    {
        const NoGrad no_grad;
        order.clear();
        (void)net.forward(x);
        CHECK(order.empty());
    }
}

TEST_CASE("full backward hooks of a layer whose input requires no gradient get none") {
    manual_seed(2);
    HookedNet net;
    int calls = 0;
    const HookHandle watch =
        net.fc.register_full_backward_hook([&](const Tensor& grad_input, const Tensor& grad_output) {
            CHECK_FALSE(grad_input.defined());
            CHECK(grad_output.to_vector<float>() == Floats(8, 1));
            ++calls;
        });
    const Tensor x = Tensor::randn({4, 3});
    sum(net.forward(x)).backward();
    CHECK(calls == 1);
    net.fc.remove_hook(watch);
    net.fc.register_full_backward_hook([](const Tensor&, const Tensor& grad_output) { return grad_output; });
    CHECK(message_of<InvalidArgument>([&] { sum(net.forward(x)).backward(); }) ==
          "Hooked: a full backward hook returned a gradient of shape (4, 2), but the input of the layer requires "
          "none; expected nothing");
    HookedNet other;
    other.fc.register_full_backward_pre_hook([](const Tensor& grad_output) { return sum(grad_output); });
    CHECK(message_of<InvalidArgument>([&] { sum(other.forward(x)).backward(); }) ==
          "Hooked: a full backward pre-hook returned a gradient () of f32; expected (4, 2) of f32");
}

TEST_CASE("full backward hooks outlive their layer, are copied with it, and pass second derivatives") {
    manual_seed(2);
    auto net = std::make_unique<HookedNet>();
    int calls = 0;
    net->fc.register_full_backward_hook([&](const Tensor& grad_input, const Tensor&) {
        ++calls;
        return grad_input * 2;
    });
    const Tensor x = Tensor::randn({4, 3}).requires_grad_();
    HookedNet copy = *net;
    const Tensor y = sum(square(net->forward(x)));
    net.reset();
    y.backward();
    CHECK(calls == 1);
    sum(copy.forward(x)).backward();
    CHECK(calls == 2);

    // y = W x + b: the gradient of sum(y * y) is 2 W' y; with the hook twice that, whose derivative is 4 W' W.
    const Tensor first = grad({sum(square(copy.forward(x)))}, {x}, {}, {.create_graph = true})[0];
    const Tensor second = grad({sum(first)}, {x})[0];
    const Tensor weight = copy.fc.weight.tensor().detach();
    const Tensor row = sum(matmul(weight.transpose(0, 1), weight), 0) * 8;
    check_close(second.select(0, 0).to_vector<float>(), doubles(row));
    CHECK(calls == 4);
}

TEST_CASE("full backward hooks are part of the steps of a wrapper") {
    for (const int devices : {1, 2}) {
        manual_seed(2);
        HookedNet plain;
        HookedNet hooked = plain;
        std::vector<std::string> shapes;
        hooked.fc.register_full_backward_hook(
            [&](const Tensor&, const Tensor& grad_output) { shapes.push_back(grad_output.shape().str()); });
        hooked.fc.register_full_backward_pre_hook([](const Tensor& grad_output) { return grad_output * 2; });
        DataParallel<HookedNet> model(hooked, cpu_devices(devices), {.shards = 2});
        DataParallel<HookedNet> other(plain, cpu_devices(devices), {.shards = 2});
        SGD sgd(model, {.lr = 0.125}), twice(other, {.lr = 0.25});
        const Tensor x = Tensor::randn({4, 3}), y = Tensor::zeros({4, 2});
        for (int step = 0; step < 3; ++step) {
            CHECK(model.step(sgd, x, y, mse_loss).item() == other.step(twice, x, y, mse_loss).item());
            CHECK(weights_of(*model) == weights_of(*other));
        }
        REQUIRE(!shapes.empty());
        CHECK(shapes.front() == "(2, 2)");
    }
}

TEST_CASE("hooks of a layer in an AnyModule take effect in the next step") {
    ChosenNet net;
    net.layers.emplace_back(Hooked<BatchNorm1d>(BatchNorm1d(3)));
    DataParallel<ChosenNet> model(net, cpu_devices(2), {.shards = 2});
    SGD sgd(model, {.lr = 0});
    const Tensor x = Tensor::randn({6, 3}), y = Tensor::zeros({6, 3});
    const double plain = model.step(sgd, x, y, mse_loss).item();
    model->layers[0].get<Hooked<BatchNorm1d>>().register_forward_hook(
        [](const BatchNorm1d&, const Tensor&, const Tensor& output) { return output * 3; });
    CHECK(model.step(sgd, x, y, mse_loss).item() == Approx(9 * plain).epsilon(1e-5));
}

TEST_CASE("a buffer that forward writes has its new value from the next step on") {
    for (const int accumulation : {1, 2})
        for (const int devices : {1, 2, 3}) {
            INFO(devices << " devices, " << accumulation << " microbatches");
            manual_seed(3);
            DataParallel<AveragingNet> model(AveragingNet{}, cpu_devices(devices), {.shards = 3});
            SGD sgd(model, {.lr = 0});
            clear(model->fc.weight);
            clear(*model->fc.bias);
            const Tensor x = Tensor::from(Floats{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, {6, 2});
            const Tensor zero = Tensor::zeros({6, 2});
            // Microbatches have every other row of the shards; the last one counts.
            const std::vector<double> added =
                accumulation == 1 ? std::vector<double>{36, 42} : std::vector<double>{21, 24};
            std::vector<double> expected{0, 0};
            for (int step = 0; step < 3; ++step) {
                const double loss =
                    model.step(sgd, x, zero, mse_loss, StepOptions{.accumulation_steps = accumulation}).item();
                CHECK(loss == Approx((expected[0] * expected[0] + expected[1] * expected[1]) / 2));
                for (std::size_t i = 0; i < 2; ++i) expected[i] = expected[i] / 2 + added[i];
                check_close(model->average->to(Device::host()).to_vector<float>(), expected);
            }
            const NoGrad no_grad;
            (void)model(x);
            check_close(model->average->to(Device::host()).to_vector<float>(), expected);
        }
}

TEST_CASE("buffers of every dtype are written by forward, and contiguous parts of them") {
    DataParallel<TypedNet> model(TypedNet{}, cpu_devices(2), {.shards = 2});
    SGD sgd(model, {.lr = 0.1});
    const Tensor x = Tensor::full({4, 2}, 0.5);
    for (int step = 0; step < 2; ++step) (void)model.step(sgd, x, x, mse_loss).item();
    CHECK(model->half->to(Device::host()).to(DType::f32).to_vector<float>() == Floats{2, 2});
    CHECK(model->count->item() == 2);
    CHECK(model->flags->to(Device::host()).to_vector<bool>() == std::vector<bool>{true, true});
    CHECK(model->wide->to(Device::host()).to_vector<double>() == std::vector<double>{0, 0, 2, 2});
}

TEST_CASE("a step that fails does not write the buffers of its forward") {
    DataParallel<AveragingNet> model(AveragingNet{}, cpu_devices(2), {.shards = 2});
    SGD sgd(model, {.lr = 0.1});
    const Tensor x = Tensor::full({4, 2}, 1), nan = Tensor::full({4, 2}, NAN);
    model.step(sgd, x, x, mse_loss);
    CHECK_THROWS(model.step(sgd, x, nan, mse_loss).item());
    CHECK(model->average->to(Device::host()).to_vector<float>() == Floats{4, 4});
}

TEST_CASE("forward of a wrapper writes only buffers of its model, and whole ones") {
    DataParallel<WritingNet> model(WritingNet{}, cpu_devices(2));
    const Tensor x = Tensor::zeros({4, 2});
    for (const auto& [kind, text] : std::vector<std::pair<int, std::string>>{
             {0, "is written by forward and is not a buffer of the model"},
             {1, "is written by forward and is not a buffer of the model"},
             {2, "copy_ inside forward writes a part of a buffer whose elements are not contiguous"}}) {
        model->kind = kind;
        CHECK_THAT(message_of<InvalidArgument>([&] { (void)model(x); }), contains(text));
    }
}

TEST_CASE("weight_norm has a weight of given lengths, with PyTorch's parameters") {
    manual_seed(4);
    const Linear plain(3, 2);
    WeightNorm<Linear> layer(plain);
    CHECK(names_of(layer) ==
          std::vector<std::string>{"bias", "parametrizations.weight.original0", "parametrizations.weight.original1"});
    CHECK(layer.parametrizations.weight.original0->shape() == Shape{2, 1});
    const Tensor x = Tensor::randn({4, 3});
    check_close(layer(x).to_vector<float>(), doubles(plain(x)));
    {
        const NoGrad no_grad;
        layer.parametrizations.weight.original0->copy_(Tensor::from(Floats{2, 5}, {2, 1}));
    }
    const std::vector<double> lengths = lengths_of_rows(layer.computed_weight().to_vector<float>(), 3);
    CHECK(lengths[0] == Approx(2));
    CHECK(lengths[1] == Approx(5));
    sum(layer(x)).backward();
    CHECK(layer.parametrizations.weight.original0->grad().defined());
    // The direction has no gradient along itself.
    const Tensor v = layer.parametrizations.weight.original1;
    const Floats along = sum(v.grad() * v.detach(), 1).to_vector<float>();
    for (const float value : along) CHECK(value == Approx(0).margin(1e-5));
    WeightNorm<Conv2d> one_length(Conv2d(2, 3, 2), std::nullopt);
    CHECK(one_length.parametrizations.weight.original0->shape() == Shape{});
    const WeightNorm<Conv2d> copy = one_length;
    const Tensor image = Tensor::randn({1, 2, 4, 4});
    CHECK(copy(image).to_vector<float>() == one_length(image).to_vector<float>());
}

TEST_CASE("spectral_norm divides by the largest singular value, which steps of the power method estimate") {
    manual_seed(5);
    SpectralNorm<Linear> layer(Linear(4, 3, false));
    CHECK(names_of(layer) == std::vector<std::string>{"parametrizations.weight.original",
                                                      "parametrizations.weight.0._u", "parametrizations.weight.0._v"});
    SpectralReference expected = reference_of(layer);
    const Tensor x = Tensor::eye(4).detach();  // gives the transposed weight
    for (const bool training : {true, true, false}) {
        layer.training = training;
        const Floats weight = layer(x).transpose(0, 1).contiguous().to_vector<float>();
        if (training) expected.iterate();
        std::vector<double> divided = expected.matrix;
        for (double& value : divided) value /= expected.sigma();
        check_close(weight, divided);
        check_close(layer.parametrizations.weight.vectors._u->to_vector<float>(), expected.u);
        check_close(layer.parametrizations.weight.vectors._v->to_vector<float>(), expected.v);
    }
    const SpectralNorm<ConvTranspose2d> transposed(ConvTranspose2d(2, 3, 2));
    CHECK(transposed.parametrizations.weight.vectors._u->shape() == Shape{3});
    CHECK(transposed.parametrizations.weight.vectors._v->shape() == Shape{8});
}

TEST_CASE("threads that share a layer with a computed weight take turns, and get the values of one thread") {
    manual_seed(9);
    const WeightNorm<Counted> lengths(Counted{});
    SpectralNorm<Counted> spectral(Counted{});
    spectral.training = false;
    const Tensor x = Tensor::randn({2, 3});
    const auto check = [&](const auto& layer) {
        const Floats expected = layer(x).template to_vector<float>();
        std::atomic<int> different{0};
        std::vector<std::thread> threads;
        Counted::most = 0;
        for (int i = 0; i < 4; ++i)
            threads.emplace_back([&] {
                const NoGrad no_grad;
                for (int call = 0; call < 100; ++call)
                    if (layer(x).template to_vector<float>() != expected) ++different;
            });
        for (std::thread& thread : threads) thread.join();
        CHECK(Counted::most == 1);
        CHECK(different == 0);
    };
    check(lengths);
    check(spectral);
}

TEST_CASE("a frozen weight remains frozen when it is parametrized") {
    const auto flags = [](auto& module) {
        std::string text;
        for (const NamedTensor& named : named_tensors(module))
            text += named.member->tensor().requires_grad() ? '1' : '0';
        return text;
    };
    Linear linear(3, 2);
    linear.weight.tensor().requires_grad_(false);
    Conv2d conv(2, 3, 2);
    conv.weight.tensor().requires_grad_(false);
    conv.bias->tensor().requires_grad_(false);
    WeightNorm<Linear> lengths(linear);
    WeightNorm<Conv2d> one_length(conv, std::nullopt);
    SpectralNorm<Linear> spectral(linear);
    SpectralNorm<Hooked<Conv2d>> hooked((Hooked<Conv2d>(conv)));
    CHECK(flags(lengths) == "100");  // bias, length, direction
    CHECK(flags(one_length) == "000");
    CHECK(flags(spectral) == "1000");  // bias, weight, singular vectors
    CHECK(flags(hooked) == "0000");

    DataParallel<FrozenNet> model(FrozenNet{lengths, spectral}, cpu_devices(2));
    SGD sgd(model, {.lr = 0.1});
    for (int step = 0; step < 2; ++step) model.step(sgd, Tensor::ones({4, 3}), Tensor::zeros({4, 1}), mse_loss);
    model.synchronize();
    const auto same = [](const Tensor& a, const Tensor& b) { return a.to_vector<float>() == b.to_vector<float>(); };
    const auto& [length, direction] = lengths.parametrizations.weight;
    CHECK(same(model->first.parametrizations.weight.original0, length));
    CHECK(same(model->first.parametrizations.weight.original1, direction));
    CHECK(same(model->second.parametrizations.weight.original, spectral.parametrizations.weight.original));
    CHECK_FALSE(same(model->first.bias->tensor(), lengths.bias->tensor()));
}

TEST_CASE("steps of parametrized layers are those of eager training, on any number of devices") {
    manual_seed(6);
    ParametrizedNet plain;
    const ParametrizedNet start = plain;
    SGD eager(plain, {.lr = 0.1});
    for (int step = 0; step < 3; ++step) {
        eager.zero_grad();
        mse_loss(plain.forward(parametrized_rows(step)), Tensor::zeros({6, 2})).backward();
        eager.step();
    }
    Floats bits;
    for (const int devices : {1, 2, 3}) {
        INFO(devices << " devices");
        DataParallel<ParametrizedNet> model(start, cpu_devices(devices), {.shards = 3});
        SGD sgd(model, {.lr = 0.1});
        for (int step = 0; step < 3; ++step) model.step(sgd, parametrized_rows(step), Tensor::zeros({6, 2}), mse_loss);
        const Floats found = weights_of(*model);
        const Floats expected = weights_of(plain);
        check_close(found, {expected.begin(), expected.end()});
        if (bits.empty()) bits = found;
        CHECK(found == bits);
    }
}

TEST_CASE("parameters are written to a vector and read from it") {
    manual_seed(7);
    Linear layer(2, 3);
    const Tensor vector = parameters_to_vector(layer);
    CHECK(vector.shape() == Shape{9});
    Floats expected = layer.weight->to_vector<float>();
    for (const float value : layer.bias->tensor().to_vector<float>()) expected.push_back(value);
    CHECK(vector.to_vector<float>() == expected);
    sum(square(vector)).backward();
    CHECK(layer.weight->grad().to_vector<float>()[1] == Approx(2 * expected[1]));
    vector_to_parameters(vector.detach() * 2, layer);
    CHECK(layer.bias->tensor().to_vector<float>()[2] == 2 * expected[8]);
    CHECK_THAT(message_of<InvalidArgument>([&] { vector_to_parameters(Tensor::zeros({8}), layer); }),
               contains("vector_to_parameters: the vector has the shape (8,); expected (9,)"));
    DataParallel<Linear> model(layer, cpu_devices(2));
    CHECK(parameters_to_vector(model).to(Device::host()).to_vector<float>() ==
          parameters_to_vector(layer).to_vector<float>());
    CHECK_THROWS_AS(SpectralNorm<Linear>(layer, {.n_power_iterations = 0}), InvalidArgument);
    CHECK_THROWS_AS(SpectralNorm<Linear>(layer, {.eps = 0}), InvalidArgument);
    CHECK_THROWS_AS(WeightNorm<Linear>(layer, 2), InvalidArgument);
}
