// Activation checkpointing: the bits of the network without it, less memory, and parts that cannot be repeated.
#include <cstddef>
#include <vector>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/checkpointed_nets.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

template <class Net>
auto trained(Checkpoints checkpoints, int devices, const StepOptions& how = {}, const EngineOptions& options = {}) {
    EngineOptions with_shards = options;
    with_shards.shards = 3;
    DataParallel<Net> model(seeded_checkpointed_net<Net>(checkpoints), cpu_devices(devices), with_shards);
    auto values = after_checkpointed_steps(model, how);
    model.engine().verify_replicas();
    return values;
}

template <class Net>
void check_bits() {
    const auto expected = trained<Net>(Checkpoints::nothing, 1);
    for (const int devices : {1, 2, 3}) {
        INFO(devices << " devices");
        CHECK(trained<Net>(Checkpoints::parts, devices) == expected);
    }
    CHECK(trained<Net>(Checkpoints::nested, 2) == expected);
}

/// Wide layers, each of which is a part.
struct Deep {
    bool checkpoints = false;
    std::vector<Linear> layers;
    LOCKSTEP_MEMBERS(layers)
    explicit Deep(bool with) : checkpoints(with) {
        for (int i = 0; i < 8; ++i) layers.emplace_back(4, 4);
    }
    Tensor forward(const Tensor& given) {
        Tensor x = given;
        for (Linear& layer : layers) {
            const auto part = [&layer](const Tensor& in) { return sigmoid(sin(tanh(sin(sigmoid(layer(in)))))); };
            x = checkpoints ? checkpointed(part, x) : part(x);
        }
        return x;
    }
};

/// Gradients of a plain module: of the input and of all parameters.
template <class Net>
std::vector<std::vector<float>> plain_gradients(Checkpoints checkpoints, bool twice = false) {
    Net net = seeded_checkpointed_net<Net>(checkpoints);
    const Tensor x = Tensor::randn({5, 6}).requires_grad_();
    const Tensor y = sum(square(net.forward(x)));
    if (twice) y.backward({}, true);
    y.backward();
    std::vector<std::vector<float>> all{x.grad().to_vector<float>()};
    for (const NamedTensor& named : named_tensors(net)) {
        const Tensor& tensor = named.member->tensor();
        if (named.is_parameter && tensor.grad().defined()) all.push_back(tensor.grad().to_vector<float>());
        if (!named.is_parameter) all.push_back(tensor.to(DType::f32).to_vector<float>());
    }
    return all;
}

/// State that forward of a plain module replaces.
struct Averaged {
    Linear fc{3, 3};
    ModuleBuffer average{Tensor::zeros({3})};
    LOCKSTEP_MEMBERS(fc, average)
    bool reads = false;
    Tensor forward(const Tensor& x) {
        const Tensor y = tanh(fc(x));
        const NoGrad no_grad;
        average->copy_(reads ? average.tensor() * 0.5 + mean(y.detach(), 0) : mean(y.detach(), 0));
        return y;
    }
};

Tensor ones_with_gradient() { return Tensor::full({2, 3}, 1.0).requires_grad_(); }

}  // namespace

TEST_CASE("checkpointed parts with random numbers train to equal bits on 1, 2 and 3 devices") {
    check_bits<CheckpointedMlp>();
}
TEST_CASE("checkpointed parts with statistics across shards train to equal bits on 1, 2 and 3 devices") {
    check_bits<CheckpointedConvolutions>();
}
TEST_CASE("checkpointed transformer layers train to equal bits on 1, 2 and 3 devices") {
    check_bits<CheckpointedTransformer>();
}

TEST_CASE("checkpointed parts have equal bits in microbatches and in bf16") {
    for (const StepOptions& how : {StepOptions{}, StepOptions{.accumulation_steps = 2}}) {
        const EngineOptions options{.autocast =
                                        how.accumulation_steps == 1 ? std::optional(DType::bf16) : std::nullopt};
        CHECK(trained<CheckpointedMlp>(Checkpoints::parts, 2, how, options) ==
              trained<CheckpointedMlp>(Checkpoints::nothing, 2, how, options));
    }
}

TEST_CASE("checkpointed parts of a plain module have equal gradients, and update running statistics once") {
    for (const bool twice : {false, true}) {
        INFO((twice ? "two backwards" : "one backward"));
        CHECK(plain_gradients<CheckpointedMlp>(Checkpoints::parts, twice) ==
              plain_gradients<CheckpointedMlp>(Checkpoints::nothing, twice));
        CHECK(plain_gradients<CheckpointedConvolutions>(Checkpoints::nested, twice) ==
              plain_gradients<CheckpointedConvolutions>(Checkpoints::nothing, twice));
        CHECK(plain_gradients<CheckpointedTransformer>(Checkpoints::parts, twice) ==
              plain_gradients<CheckpointedTransformer>(Checkpoints::nothing, twice));
    }
}

TEST_CASE("checkpointed parts can be differentiated twice") {
    // (x^3)'' = 6 x
    const Tensor x = Tensor::from(std::vector<double>{0.5, -2}, {2}).requires_grad_();
    const Tensor y = checkpointed([](const Tensor& in) { return square(in) * in; }, x);
    const Tensor first = grad({sum(y)}, {x}, {}, {.create_graph = true})[0];
    const std::vector<double> second = grad({sum(first)}, {x})[0].to_vector<double>();
    CHECK(second[0] == Approx(3));
    CHECK(second[1] == Approx(-12));
}

TEST_CASE("checkpointed parts need the memory of one part") {
    // Every layer saves six results of 4 x 40 KiB; its argument is a seventh of all that it keeps.
    const Tensor x = Tensor::randn({10240, 4});
    const auto peak_of_step = [&](bool checkpoints) {
        manual_seed(7);
        const std::size_t before = memory_stats(Device::cpu(0)).current;
        reset_peak_memory(Device::cpu(0));
        DataParallel<Deep> model(Deep(checkpoints), cpu_devices(1));
        SGD sgd(model, {.lr = 0.1});
        for (int i = 0; i < 2; ++i) model.step(sgd, x, x, mse_loss);
        model.synchronize();
        return static_cast<double>(memory_stats(Device::cpu(0)).peak - before);
    };
    CHECK(peak_of_step(true) < 0.6 * peak_of_step(false));
    const auto peak_of_backward = [&](bool checkpoints) {
        Deep net(checkpoints);
        const Tensor given = x.to(Device::cpu(0));
        to(net, Device::cpu(0));
        synchronize_all();
        const std::size_t before = memory_stats(Device::cpu(0)).current;
        reset_peak_memory(Device::cpu(0));
        sum(net.forward(given)).backward();
        synchronize_all();
        return static_cast<double>(memory_stats(Device::cpu(0)).peak - before);
    };
    CHECK(peak_of_backward(true) < 0.6 * peak_of_backward(false));
}

TEST_CASE("checkpointed outside of autograd calls the part") {
    const NoGrad no_grad;
    const Tensor y = checkpointed([](const Tensor& x, double by) { return x * by; }, ones_with_gradient(), 3.0);
    CHECK(y.to_vector<float>() == std::vector<float>(6, 3));
    CHECK_FALSE(y.requires_grad());
}

TEST_CASE("checkpointed parts that cannot be repeated are refused in backward") {
    Averaged net;
    const auto backward_of = [](const Tensor& y) { return message_of<InvalidArgument>([&] { sum(y).backward(); }); };
    const Tensor plain = checkpointed(net, ones_with_gradient());
    const std::vector<float> average = net.average->to_vector<float>();
    CHECK_NOTHROW(sum(plain).backward());
    CHECK(net.average->to_vector<float>() == average);  // written once
    net.reads = true;
    CHECK(
        contains(backward_of(checkpointed(net, ones_with_gradient())),
                 "checkpointed: the part reads a tensor of shape (3,) that was written after its first run or by it"));

    const Tensor changed = Tensor::full({2, 3}, 1.0);
    const Tensor y = checkpointed(net.fc, changed);
    changed.fill_(2);
    CHECK(contains(backward_of(tanh(y)),
                   "backward of checkpointed: a tensor of shape (2, 3) that it needs was modified"));

    const auto runs = std::make_shared<int>(0);
    CHECK(contains(backward_of(checkpointed([runs](const Tensor& x) { return ++*runs > 1 ? x * 2 : tanh(sin(x)); },
                                            ones_with_gradient())),
                   "checkpointed: the part saved 2 tensors for backward, and 0 when it ran again"));
    CHECK(contains(message_of<InvalidArgument>([] {
                       checkpointed([](const Tensor& x) { return x * grad({sum(tanh(sin(x)))}, {x})[0]; },
                                    ones_with_gradient());
                   }),
                   "checkpointed: the part calls backward() or grad() on functions that it contains"));
}
