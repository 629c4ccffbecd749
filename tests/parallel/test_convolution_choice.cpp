// Convolutions that are computed directly: those of a wrapper with that option, and all with LOCKSTEP_CONV=direct.
// Winograd's are recognized by the whole tiles to which they spread NaN. (The kernels: test_conv_engine.)
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/instruction_set.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/loss.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/record.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"

namespace ls = lockstep;

namespace {

struct Net {
    ls::Conv2d first{32, 32, 3, {.padding = 1}}, second{32, 32, 3, {.padding = 1}};
    LOCKSTEP_MEMBERS(first, second)
    ls::Tensor forward(const ls::Tensor& x) const { return second(ls::relu(first(x))); }
};

Net seeded() {
    ls::manual_seed(2);
    return {};
}

bool has_winograd() { return ls::instruction_set() != "generic"; }

/// Whether LOCKSTEP_CONV selects direct convolutions for this process.
bool direct_by_default() {
    const char* set = std::getenv("LOCKSTEP_CONV");
    return set != nullptr && std::string(set) == "direct";
}

/// (2, 32, 12, 12); element (0, 5, 6, 6) is NaN.
ls::Tensor spoiled_images() {
    std::vector<float> values(std::size_t{2} * 32 * 144, 0.5F);
    values[5 * 144 + 6 * 12 + 6] = NAN;
    return ls::Tensor::from(values, {2, 32, 12, 12});
}

/// Two windows of 3x3 reach 5x5 elements of every channel. Winograd's first layer spreads NaN over its tile, 4x4; the
/// second spreads it from there to 6x6, as windows do: on the border of a tile's input NaN reaches only outputs that
/// use it.
std::ptrdiff_t expected_nan(bool direct) { return 32 * (direct || !has_winograd() ? 25 : 36); }

std::ptrdiff_t count_nan(const ls::Tensor& y) {
    const std::vector<float> values = y.detach().to_vector<float>();
    return std::count_if(values.begin(), values.end(), [](float value) { return std::isnan(value); });
}

using Gradients = std::vector<std::vector<float>>;

Gradients gradients_of(const Net& net) {
    return {net.first.weight->grad().to_vector<float>(), net.second.weight->grad().to_vector<float>()};
}

/// Gradients of the mean square of the output of `net` for `x`, without a wrapper.
Gradients eager_gradients(const ls::Tensor& x, ls::ConvAlgorithm algorithm) {
    const ls::ComputeScope scope({.threads = 1, .deterministic = true, .convolution = algorithm});
    Net net = seeded();
    ls::to(net, ls::Device::cpu(0));
    ls::mean(ls::square(net.forward(x.to(ls::Device::cpu(0))))).backward();
    return gradients_of(net);
}

}  // namespace

TEST_CASE("a wrapper computes convolutions as set by its options, or else by the environment", "[convolution]") {
    using Choice = std::optional<ls::ConvAlgorithm>;
    for (const Choice choice : {Choice(), Choice(ls::ConvAlgorithm::automatic), Choice(ls::ConvAlgorithm::direct)}) {
        const bool direct = choice ? *choice == ls::ConvAlgorithm::direct : direct_by_default();
        INFO((choice ? "told, " : "by default, ") << (direct ? "direct" : "automatic"));
        ls::DataParallel model(seeded(), ls::test::cpu_devices(2), {.convolution = choice});
        CHECK(count_nan(model(spoiled_images())) == expected_nan(direct));
    }
}

TEST_CASE("eager convolutions are computed as set by the environment", "[convolution]") {
    Net net = seeded();
    ls::to(net, ls::Device::cpu(0));
    const ls::Tensor x = spoiled_images().to(ls::Device::cpu(0));
    CHECK(count_nan(net.forward(x)) == expected_nan(direct_by_default()));
    const ls::ComputeScope scope({.threads = 1, .deterministic = true, .convolution = ls::ConvAlgorithm::direct});
    CHECK(count_nan(net.forward(x)) == expected_nan(true));
}

TEST_CASE("the choice applies to gradients as well", "[convolution]") {
    ls::manual_seed(3);
    const ls::Tensor x = ls::Tensor::randn({2, 32, 12, 12});
    Gradients of_algorithm[2];
    for (const auto algorithm : {ls::ConvAlgorithm::automatic, ls::ConvAlgorithm::direct}) {
        ls::DataParallel model(seeded(), ls::test::cpu_devices(1), {.shards = 1, .convolution = algorithm});
        ls::mean(ls::square(model(x))).backward();
        Gradients& found = of_algorithm[algorithm == ls::ConvAlgorithm::direct ? 1 : 0];
        found = gradients_of(*model);
        CHECK(found == eager_gradients(x, algorithm));
    }
    CHECK((of_algorithm[0] != of_algorithm[1]) == has_winograd());
}
