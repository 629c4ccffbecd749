// A plain model with parts on several devices: an optimizer, clipping and errors have the same effect as on one device.
#include <cmath>
#include <limits>

#include "lockstep/ops/adam.h"
#include "lockstep/ops/clip_grad.h"
#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/copy_count.h"
#include "lockstep/runtime/random.h"
#include "lockstep/runtime/stream.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using lockstep::test::message_of;

namespace {

const Device first = Device::cpu(0), second = Device::cpu(1);

struct Net {
    Linear encoder{6, 5}, decoder{5, 3};
    LOCKSTEP_MEMBERS(encoder, decoder)

    Tensor forward(const Tensor& x) { return decoder(relu(encoder(x)).to(decoder.weight->device())); }
};

/// On `first`, with the decoder on `other`.
Net made(Device other) {
    manual_seed(3);
    Net net;
    to(net.encoder, first);
    to(net.decoder, other);
    return net;
}

std::vector<float> values_of(Net& net) {
    std::vector<float> all;
    for (const NamedTensor& named : named_tensors(net)) {
        const auto own = named.member->tensor().to_vector<float>();
        all.insert(all.end(), own.begin(), own.end());
    }
    return all;
}

Tensor images() {
    manual_seed(5);
    return Tensor::randn({8, 6}).to(first);
}
Tensor labels(Device device, std::int64_t last = 2) {
    return Tensor::from(std::vector<std::int64_t>{0, 1, 2, 0, 1, 2, 0, last}, {8}, device);
}

/// Parameters after five steps, and the norms before clipping.
template <class MakeOptimizer>
std::pair<std::vector<float>, std::vector<double>> trained(Device other, MakeOptimizer make) {
    Net net = made(other);
    auto optimizer = make(net);
    const Tensor x = images(), y = labels(other);
    std::vector<double> norms;
    for (int step = 0; step < 5; ++step) {
        optimizer.zero_grad();
        cross_entropy(net.forward(x), y).backward();
        norms.push_back(clip_grad_norm_(optimizer, {.max_norm = 0.2}).item());
        optimizer.step();
    }
    CHECK(net.encoder.weight->device() == first);
    CHECK(net.decoder.weight->device() == other);
    return {values_of(net), norms};
}

}  // namespace

TEST_CASE("parameters on two devices are updated and clipped bit-identically to one device", "[devices]") {
    const auto adamw = [](Net& net) { return AdamW(net, {.lr = 0.05}); };
    const auto sgd = [](Net& net) { return SGD(net, {.lr = 0.1, .momentum = 0.9}); };
    CHECK(trained(second, adamw) == trained(first, adamw));
    CHECK(trained(second, sgd) == trained(first, sgd));
    const auto [values, norms] = trained(second, sgd);
    CHECK(norms[0] > 0.2);  // so that clipping had an effect
    CHECK(values != values_of(*std::make_unique<Net>(made(second))));
}

TEST_CASE("a step with parameters on two devices copies only tensors that cross between the parts", "[devices]") {
    Net net = made(second);
    SGD sgd(net, {.lr = 0.1, .momentum = 0.9});
    const Tensor x = images(), y = labels(second);
    const auto step = [&] {
        sgd.zero_grad();
        cross_entropy(net.forward(x), y).backward();
        sgd.step();
        synchronize_all();
    };
    step();
    copy_count::reset();
    step();
    const auto copies = copy_count::between_devices();
    CHECK(copies.at({first, second}).copies == 1);  // the activation
    CHECK(copies.at({first, second}).bytes == 8 * 5 * sizeof(float));
    CHECK(copies.at({second, first}).copies == 1);  // its gradient
    CHECK(copies.at({second, first}).bytes == 8 * 5 * sizeof(float));
    CHECK_FALSE(copies.contains({Device::host(), first}));
    CHECK_FALSE(copies.contains({Device::host(), second}));
}

TEST_CASE("invalid data on one device leaves parameters on all devices unchanged", "[devices]") {
    Net net = made(second);
    SGD sgd(net, {.lr = 0.1});
    const std::vector<float> before = values_of(net);
    const Tensor x = images();
    cross_entropy(net.forward(x), labels(second, 12)).backward();
    sgd.step();
    CHECK(message_of<InvalidArgument>([] { synchronize_all(); }).starts_with("cross_entropy: target 12"));
    CHECK(values_of(net) == before);
}

TEST_CASE("other norms over two devices, and a non-finite norm", "[devices]") {
    const Tensor a = Tensor::zeros({2}, DType::f32, first), b = Tensor::zeros({2}, DType::f32, second);
    const auto give = [&](float last) {
        a.set_grad(Tensor::from(std::vector<float>{3, -4}, {2}, first));
        b.set_grad(Tensor::from(std::vector<float>{0, last}, {2}, second));
    };
    give(12);
    CHECK(clip_grad_norm_({a, b}, {.max_norm = 100}).item() == 13);
    CHECK(clip_grad_norm_({b, a}, {.max_norm = 100, .norm_type = 1}).item() == 19);
    CHECK(clip_grad_norm_({a, b}, {.max_norm = 6.5, .norm_type = std::numeric_limits<double>::infinity()}).item() ==
          12);
    CHECK(b.grad().to_vector<float>()[1] == Approx(6.5));
    CHECK(a.grad().to_vector<float>()[1] == Approx(-4 * 6.5 / 12));
    clip_grad_value_({a, b}, {.clip_value = 1});
    CHECK(b.grad().to_vector<float>() == std::vector<float>{0, 1});
    give(std::numeric_limits<float>::infinity());
    CHECK(message_of<InvalidArgument>([&] {
              clip_grad_norm_({a, b}, {.max_norm = 1, .error_if_nonfinite = true});
          }).find("clip_grad_norm_: the norm of order 2 is not finite") != std::string::npos);
    CHECK(a.grad().to_vector<float>() == std::vector<float>{3, -4});
}

TEST_CASE("a module's own `to` calls that of the library", "[devices]") {
    Net net = made(first);
    CHECK(&net.decoder.to(second) == &net.decoder);
    CHECK(net.decoder.weight->device() == second);
    CHECK(net.encoder.weight->device() == first);
    CHECK(net.to(DType::f64).encoder.weight->dtype() == DType::f64);
}

TEST_CASE("a model that an optimizer holds on two devices can no longer be moved", "[devices]") {
    Net net = made(second);
    const SGD sgd(net, {.lr = 0.1});
    CHECK(message_of<InvalidArgument>([&] { to(net.decoder, first); }) ==
          "to: the parameter weight belongs to a wrapper or an optimizer; expected a call before these are created, or "
          "a copy of the model");
    Net copy = net;
    to(copy, first);
    CHECK(copy.decoder.weight->device() == first);
    CHECK(net.decoder.weight->device() == second);
    CHECK(values_of(copy) == values_of(net));
}
