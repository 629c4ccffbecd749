// Functions that are made of several operations, in traced steps: the bits do not depend on the number of devices, and
// the weights are those of a plain module.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"

using namespace lockstep;

namespace {

/// Rows of 16 numbers through searches, scans, reductions at indices and special functions.
struct RareFunctions {
    Linear fc{6, 16}, out{16, 2};
    LOCKSTEP_MEMBERS(fc, out)
    Tensor forward(const Tensor& x) {
        const Tensor y = fc(x), bounds = Tensor::linspace(-1, 1, 5, DType::f32, x.device());
        const Tensor bin = bucketize(y.detach(), bounds);  // 0 to 5
        const Tensor sorted = sort(y.detach(), 1).values;
        const Tensor place = searchsorted(sorted, y.detach() * 0.5);  // 0 to 16
        const Tensor sums = scatter_reduce(zeros_like(y), 1, bin, y, ScatterReduction::mean);
        const Tensor most = scatter_reduce(y, 1, remainder(place, 16), y, ScatterReduction::amax, false);
        const Tensor running = cummax(y, 1).values + logcumsumexp(y, 1) + cummin(y, 1).values;
        const Tensor special = erfinv(tanh(y) * 0.9) + digamma(exp(y) + 0.5) + erfc(y) + sinc(y);
        const Tensor steps = floor_divide(y, 0.25) * 0.01 + copysign(y, sin(y * 3)) + fmax(y, -y);
        const Tensor moved = cat({diff(y, 1, 1), tensor_split(y, 3, 1)[0].slice(1, 0, 1)}, 1);
        const Tensor product = inner(y, Tensor::linspace(0, 1, 16, DType::f32, x.device())).unsqueeze(1);
        return out(sums + most + running * 0.1 + special * 0.1 + steps + moved + product);
    }
};

/// Images through grids and every mode of interpolation.
struct RareImages {
    Conv2d conv{1, 2, 3, {.padding = 1}};
    Linear out{50, 2};
    LOCKSTEP_MEMBERS(conv, out)
    Tensor forward(const Tensor& x) {
        const Tensor y = conv(x.reshape({x.size(0), 1, 2, 3}).tag_batch());
        const Tensor theta =
            Tensor::from(std::vector<float>{0.9f, 0.2f, 0.1f, -0.3f, 0.8f, -0.2f}, {1, 2, 3}, x.device());
        const Tensor grid = affine_grid(theta.expand({x.size(0), 2, 3}).tag_batch(), {x.size(0), 2, 5, 5});
        Tensor sum_of = grid_sample(y, grid, {.padding_mode = GridSamplePadding::reflection});
        for (const InterpolateMode mode :
             {InterpolateMode::bicubic, InterpolateMode::area, InterpolateMode::nearest_exact})
            sum_of = sum_of + interpolate(y, {.size = Pair(5, 5), .mode = mode});
        const Tensor volume =
            interpolate(y.unsqueeze(2), {.size = Triple(1, 5, 5), .mode = InterpolateMode::trilinear});
        const Tensor pooled = max_pool2d(sum_of + volume.squeeze(2), 2, Pair(1), 1, true);
        return out(pooled.slice(2, 0, 5).slice(3, 0, 5).flatten(1));
    }
};

/// Rows of 16 numbers through pooling with positions, counts, products at indices and integrals.
struct RarerFunctions {
    Linear fc{6, 16}, out{16, 2};
    LOCKSTEP_MEMBERS(fc, out)
    Tensor forward(const Tensor& x) {
        const Tensor y = fc(x), images = y.reshape({x.size(0), 1, 4, 4});
        const ValuesAndIndices largest = max_pool2d_with_indices(images, 2);
        const Tensor places =
            max_unpool2d(largest.values, largest.indices, 2) + max_pool2d(images, 2, Pair(1), 1, false, 2);
        const Tensor means = avg_pool2d(images, 2, Pair(3), 0, true, true) + lp_pool2d(exp(images), 3, 2);
        const Tensor bin = bucketize(y.detach(), Tensor::linspace(-1, 1, 5, DType::f32, x.device()));
        const Tensor products = scatter_reduce(y, 1, bin, y * 0.5 + 1.0, ScatterReduction::prod);
        const Tensor orders = nanmedian(y, 1, true).values + mode(y, 1, true).values +
                              movedim(quantile(y, {0.2, 0.7}, 1), 0, 1).slice(1, 0, 1) +
                              nanquantile(masked_fill(y, y > 1, std::nan("")), 0.4, 1, true);
        const Tensor parity = bitwise_xor(bitwise_and(bin, 1), bitwise_right_shift(bin, 1)).to(y.dtype());
        const Tensor scale = index_put(out.weight.tensor(), {Tensor::zeros({1}, DType::i64, x.device())},
                                       Tensor::full({16}, 0.5, DType::f32, x.device()), true);
        const Tensor limited = where(isin(bin, Tensor::from(std::vector<std::int64_t>{1, 4}, {2}, x.device())), y,
                                     clamp(y, -exp(y), exp(y)));
        const Tensor turned = swapaxes(y.reshape({x.size(0), 4, 4}), 1, 2).flatten(1);
        const Tensor area = trapezoid(y, 0.5, 1).unsqueeze(1) + turned;
        const Tensor weighted = linear(y * parity, scale).flatten(1).slice(1, 0, 1);
        const Tensor features = places.flatten(1) + products + orders + limited + rrelu(y) + area + weighted;
        return out(features) + mean(means, {1, 2, 3}).unsqueeze(1);
    }
};

template <class Net>
std::vector<float> weights_of(Net& net) {
    std::vector<float> all;
    for (const NamedTensor& named : named_tensors(net))
        for (const float value : named.member->tensor().to(Device::host()).template to_vector<float>())
            all.push_back(value);
    return all;
}

template <class Net>
void check_steps() {
    manual_seed(11);
    const Net net;
    const Tensor x = Tensor::randn({7, 6}), target = Tensor::randn({7, 2});
    const auto trained = [&](int devices) {
        DataParallel<Net> model(net, test::cpu_devices(devices), {.shards = 3});
        SGD sgd(model, {.lr = 0.01});
        for (int step = 0; step < 3; ++step) (void)model.step(sgd, x, target, mse_loss).item();
        return weights_of(*model);
    };
    const std::vector<float> one = trained(1);
    for (const int devices : {2, 3}) CHECK(trained(devices) == one);
    Net plain = net;
    SGD sgd(plain, {.lr = 0.01});
    for (int step = 0; step < 3; ++step) {
        sgd.zero_grad();
        mse_loss(plain.forward(x), target).backward();
        sgd.step();
    }
    const std::vector<float> expected = weights_of(plain);
    REQUIRE(one.size() == expected.size());
    for (std::size_t i = 0; i < one.size(); ++i) CHECK(one[i] == Approx(expected[i]).margin(2e-5));
}

struct Draws {
    Linear fc{6, 4};
    LOCKSTEP_MEMBERS(fc)
    Tensor forward(const Tensor& x) {
        const Tensor weights = softmax(fc(x), 1).detach();
        return cat({multinomial(weights, 2), multinomial(weights, 3, true)}, 1);
    }
};

}  // namespace

TEST_CASE("searches, scans and special functions in steps") { check_steps<RareFunctions>(); }

TEST_CASE("grids and all modes of interpolation in steps") { check_steps<RareImages>(); }

TEST_CASE("pooling with positions, orders, products at indices and integrals in steps") {
    check_steps<RarerFunctions>();
}

TEST_CASE("multinomial draws the same categories on any number of devices") {
    manual_seed(12);
    const Draws net;
    const Tensor x = Tensor::randn({9, 6});
    const auto drawn = [&](int devices) {
        DataParallel<Draws> model(net, test::cpu_devices(devices), {.shards = 3});
        std::vector<std::int64_t> all;
        for (int call = 0; call < 2; ++call)
            for (const std::int64_t number : model.forward(x).to_vector<std::int64_t>()) all.push_back(number);
        return all;
    };
    const std::vector<std::int64_t> one = drawn(1);
    CHECK(one.size() == 90);
    for (const int devices : {2, 3}) CHECK(drawn(devices) == one);
    CHECK_FALSE(std::vector(one.begin(), one.begin() + 45) == std::vector(one.begin() + 45, one.end()));
}
