// Sums in f32 of many values: errors do not grow with their number. One lane of the CPU backend's loops adds up 2^15
// values here, which as one f32 sum would lose more digits than a single rounding.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/loss.h"
#include "lockstep/tests/catch.h"

using namespace lockstep;

namespace {

constexpr double bound = 5e-6;

/// The largest relative error, signs apart.
double error(const Tensor& found, double expected) {
    double largest = 0;
    for (const float value : found.detach().to_vector<float>())
        largest = std::max(largest, std::abs(std::abs(static_cast<double>(value)) / expected - 1));
    return largest;
}

/// (1, channels, side, side), alternating between 0.3 and 0.7.
Tensor chequered(std::int64_t channels, std::int64_t side, Device device) {
    std::vector<float> values(static_cast<std::size_t>(channels * side * side));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = i % 2 == 0 ? 0.3F : 0.7F;
    return Tensor::from(values, {1, channels, side, side}, device);
}

/// The same values in the layout of a convolution's result: blocks of 16 channels.
Tensor convolved(const Tensor& x) {
    std::vector<float> identity(16 * 16);
    for (std::size_t c = 0; c < 16; ++c) identity[c * 16 + c] = 1;
    return conv2d(x, Tensor::from(identity, {16, 16, 1, 1}, x.device()));
}

void check_batch_norm(const Tensor& x) {
    const Tensor weight = Tensor::full({x.size(1)}, 1, DType::f32, x.device()).requires_grad_();
    const Tensor bias = Tensor::full({x.size(1)}, 0, DType::f32, x.device()).requires_grad_();
    const Tensor y = batch_norm(x, {}, {}, weight, bias);
    y.backward(x);
    const auto count = static_cast<double>(x.size(2) * x.size(3));
    const double normal = 0.2 / std::sqrt(0.04 + 1e-5);  // 0.2 from the mean either way
    CHECK(error(y, normal) < bound);
    CHECK(error(bias.grad(), count * 0.5) < bound);
    CHECK(error(weight.grad(), count * 0.2 * normal) < bound);
}

}  // namespace

TEST_CASE("sums over large images are as accurate as those over small ones") {
    for (const Device device : {Device::host(), Device::cpu(0)}) {
        INFO(device.str());
        const std::int64_t side = 1024;
        const Tensor x = Tensor::full({1, 2, side, side}, 0.7, DType::f32, device);
        CHECK(error(sum(x, {2, 3}), side * side * 0.7) < bound);
        CHECK(error(mse_loss(x, x * 2).value(), 0.49) < bound);
        check_batch_norm(chequered(1, side, device));
        check_batch_norm(convolved(chequered(16, 256, device)));
    }
}

TEST_CASE("sums of integers and bool are i64 and exact") {
    using Numbers = std::vector<std::int64_t>;
    const std::int64_t large = std::int64_t{1} << 62;
    for (const Device device : {Device::host(), Device::cpu(0)}) {
        CAPTURE(device.str());
        const auto numbers = [&](const Numbers& values, const Shape& shape) {
            return Tensor::from(values, shape).to(device);
        };
        CHECK(sum(numbers({large, 1, -large, 5}, {4})).to_vector<std::int64_t>() == Numbers{6});
        CHECK(sum(numbers({large, large}, {2})).to_vector<std::int64_t>() == Numbers{2 * -large});  // wraps around
        const Tensor table = numbers({1, 2, 3, 4, 5, 6}, {2, 3});
        for (const DType dtype : {DType::i64, DType::i32, DType::u8}) {
            CAPTURE(name_of(dtype));
            CHECK(sum(table.to(dtype), 0).to_vector<std::int64_t>() == Numbers{5, 7, 9});
            CHECK(sum(table.to(dtype).transpose(0, 1), 0, true).shape() == Shape{1, 2});
            CHECK(sum(table.to(dtype), {0, 1}).dtype() == DType::i64);
        }
        CHECK(sum(Tensor::full({1000}, 255, DType::u8, device)).to_vector<std::int64_t>() == Numbers{255000});
        CHECK(sum(table > 2).to_vector<std::int64_t>() == Numbers{4});
        CHECK(sum(Tensor::zeros({0}, DType::boolean, device)).to_vector<std::int64_t>() == Numbers{0});
        CHECK(sum(Tensor::full({}, 7, DType::i32, device)).dtype() == DType::i64);
    }
}

TEST_CASE("means of f16 are finite if their sums exceed the largest number of f16") {
    for (const Device device : {Device::host(), Device::cpu(0)}) {
        const Tensor many = Tensor::full({70000}, 2, DType::f16, device).requires_grad_();
        const Tensor of_many = mean(many);
        CHECK(of_many.dtype() == DType::f16);
        CHECK(of_many.item() == 2);
        of_many.backward();
        // 1 / 70000 is a subnormal number of f16, a multiple of 2^-24.
        CHECK(error(many.grad().to(DType::f32), std::round(0x1p24 / 70000) * 0x1p-24) == 0);
        const Tensor large = Tensor::full({2, 3, 4}, 40000, DType::f16, device);
        CHECK(mean(large, {1}).to(DType::f32).to_vector<float>() == std::vector<float>(8, 40000));
        CHECK(mean(large, {0, 2}, true).to(DType::f32).to_vector<float>() == std::vector<float>(3, 40000));
        CHECK(mean(large, {0, 2}, true).shape() == Shape({1, 3, 1}));
    }
}
