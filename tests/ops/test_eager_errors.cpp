// Errors that only the device can find in the data of an eager call: the first read of a dependent value throws them,
// once, in the name of that call.
#include <functional>
#include <string>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"
#include "lockstep/runtime/stream.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using lockstep::test::message_of;

namespace {

const std::string outside = " is out of range; expected a class from 0 to the number of outputs - 1";

Tensor classes(const std::vector<std::int64_t>& values, Device device) {
    return Tensor::from(values, {static_cast<std::int64_t>(values.size())}).to(device);
}

std::string refusal(const std::function<void()>& read) { return message_of<InvalidArgument>(read); }

struct Net {
    Linear fc{4, 3};
    BatchNorm2d norm{1};
    LOCKSTEP_MEMBERS(fc, norm)
    Tensor forward(const Tensor& x) { return log_softmax(fc(norm(x.reshape({x.size(0), 1, 2, 2})).flatten(1)), 1); }
};

using Floats = std::vector<float>;

}  // namespace

TEST_CASE("the first read of a dependent tensor throws with the name of the call, and no other read does") {
    for (const Device device : {Device::host(), Device::cpu(0)}) {
        const Tensor logp = Tensor::randn({3, 4}).to(device);
        const Tensor before = logp * 2.0;
        const Loss bad = nll_loss(logp, classes({0, 4, 1}, device));
        const Tensor beside = logp + 1.0;  // created later, from the same input
        const Tensor dependent = (bad.value() * 3.0 + beside).reshape({2, 6}).slice(0, 0, 1).to(Device::cpu(1));
        CHECK(refusal([&] { (void)before.to_vector<float>(); }).empty());
        CHECK(refusal([&] { (void)beside.item(); }).find("item: a tensor of shape") == 0);
        CHECK(refusal([&] { (void)beside.to_vector<float>(); }).empty());
        CHECK(refusal([&] { (void)dependent.to_vector<float>(); }) == "nll_loss: target 4 in row 1" + outside);
        CHECK(refusal([&] { (void)dependent.to_vector<float>(); }).empty());  // reported once
        CHECK(refusal([&] { (void)bad.item(); }).empty());
        CHECK(refusal([] { synchronize_all(); }).empty());
    }
}

TEST_CASE("every kind of read throws the error") {
    const Device device = Device::cpu(0);
    const Tensor logits = Tensor::randn({2, 3}).to(device);
    const auto bad = [&] { return cross_entropy(logits, classes({1, -2}, device)).value(); };
    const std::string text = "cross_entropy: target -2 in row 1" + outside;
    const std::vector<std::pair<const char*, std::function<void(const Tensor&)>>> reads{
        {"item", [](const Tensor& x) { (void)x.item(); }},
        {"to_vector", [](const Tensor& x) { (void)x.to_vector<float>(); }},
        {"str", [](const Tensor& x) { (void)x.str(); }},
        {"to(host)", [](const Tensor& x) { (void)x.to(Device::host()); }},
        {"copy_ to the host", [](const Tensor& x) { (void)Tensor::zeros({}).copy_(x); }},
        {"through a clone", [](const Tensor& x) { (void)x.clone().item(); }},
        {"through another dtype", [](const Tensor& x) { (void)x.to(DType::f64).to_vector<double>(); }},
        {"written into another",
         [](const Tensor& x) {
             const Tensor other = Tensor::zeros({2}, DType::f32, Device::cpu(0));
             other.select(0, 1).copy_(x);
             (void)other.to_vector<float>();
         }},
        {"synchronize_all", [](const Tensor&) { synchronize_all(); }},
    };
    for (const auto& [name, read] : reads) {
        INFO(name);
        const Tensor value = bad();
        CHECK(refusal([&, &read_of = read] { read_of(value); }) == text);
        CHECK(refusal([&] { (void)value.item(); }).empty());
    }
    const Tensor on_host = cross_entropy(logits.to(Device::host()), classes({1, -2}, Device::host())).value();
    CHECK(refusal([&] { (void)on_host.data<float>(); }) == text);
}

TEST_CASE("two bad calls are reported one after the other") {
    const Device device = Device::cpu(0);
    const Tensor logp = Tensor::randn({2, 3}).to(device);
    const Tensor sum =
        nll_loss(logp, classes({5, 0}, device)).value() + cross_entropy(logp, classes({0, 6}, device)).value();
    CHECK(refusal([&] { (void)sum.item(); }) == "nll_loss: target 5 in row 0" + outside);
    CHECK(refusal([&] { (void)sum.item(); }) == "cross_entropy: target 6 in row 1" + outside);
    CHECK(refusal([&] { (void)sum.item(); }).empty());
}

TEST_CASE("synchronize_all throws unread errors, even if their tensors were destroyed") {
    const Device device = Device::cpu(1);
    { const Loss forgotten = nll_loss(Tensor::randn({1, 3}).to(device), classes({3}, device)); }
    CHECK(refusal([] { synchronize_all(); }) == "nll_loss: target 3 in row 0" + outside);
    CHECK(refusal([] { synchronize_all(); }).empty());
}

TEST_CASE("gradients and parameters depend on the loss: a plain model is unchanged until the error is thrown") {
    manual_seed(41);
    const Device device = Device::cpu(0);
    for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
        Net net;
        to(net, device);
        SGD sgd(net, {.lr = 0.5, .momentum = 0.9});
        const NllLoss loss{{.reduction = reduction}};
        const Tensor x = Tensor::randn({4, 4}).to(device);
        const auto step = [&](const std::vector<std::int64_t>& targets) {
            sgd.zero_grad();
            loss(net.forward(x), classes(targets, device)).backward();
            sgd.step();
        };
        step({0, 1, 2, 0});
        const Floats weights = net.fc.weight->detach().to_vector<float>();
        const Floats mean = net.norm.running_mean->tensor().to_vector<float>();
        step({0, 1, 9, 0});
        const Floats moved = net.norm.running_mean->tensor().to_vector<float>();  // forward ran before the loss
        CHECK(moved != mean);
        CHECK(refusal([&] { (void)net.fc.weight->grad().to_vector<float>(); }) ==
              "nll_loss: target 9 in row 2" + outside);
        CHECK(net.fc.weight->detach().to_vector<float>() == weights);
        step({0, 1, 9, 0});
        step({0, 1, 2, 0});  // its forward depends on state that the bad step would have changed
        CHECK(refusal([&] { (void)net.fc.weight->detach().to_vector<float>(); }) ==
              "nll_loss: target 9 in row 2" + outside);
        CHECK(net.fc.weight->detach().to_vector<float>() == weights);
        step({0, 1, 2, 0});
        CHECK(net.fc.weight->detach().to_vector<float>() != weights);
    }
}

TEST_CASE("good calls leak no memory") {
    const Device device = Device::cpu(0);
    const Tensor logp = Tensor::randn({3, 4}).to(device);
    Tensor total = Tensor::zeros({}, DType::f32, device);
    for (int i = 0; i < 200; ++i) total = total + nll_loss(logp, classes({0, 3, 1}, device)).value();
    CHECK(refusal([&] { (void)total.item(); }).empty());
    const std::size_t after = memory_stats(device).current;
    for (int i = 0; i < 200; ++i) total = total + nll_loss(logp, classes({0, 3, 1}, device)).value();
    (void)total.item();
    CHECK(memory_stats(device).current == after);
}
