// Autocast: compute dtypes of functions, gradients of f32 parameters, and 16-bit results equal to rounded f32 results.
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ops/dice.h"
#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/loss.h"
#include "lockstep/runtime/autocast.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/log.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using lockstep::test::message_of;

namespace {

constexpr DType half_types[] = {DType::bf16, DType::f16};

/// Numbers that f16 and bf16 can represent, including sums of a few products.
Tensor whole_numbers(const Shape& shape, DType dtype = DType::f32) {
    std::vector<float> values(static_cast<std::size_t>(shape.numel()));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(static_cast<int>(i * 7 % 5) - 2);
    return Tensor::from(values, shape).to(dtype);
}

std::vector<float> values_of(const Tensor& x) { return x.to(DType::f32).to_vector<float>(); }

}  // namespace

TEST_CASE(
    "a single warning says that f16 is emulated on CPU devices") {  // must be the first case: warns once per process
    std::vector<std::string> warnings;
    const LogHandler before = set_log_handler([&](LogLevel, const std::string& text) { warnings.push_back(text); });
    const Tensor x = Tensor::full({7, 3}, 1, DType::f16);
    (void)softmax(x, 1);
    (void)softmax(x, 0);
    set_log_handler(before);
    REQUIRE(warnings.size() == 1);
    CHECK(
        warnings[0] ==
        "f16 is emulated on CPU devices: it is computed in f32 and rounded, so it is not faster than f32; bf16 may be");
}

TEST_CASE("functions compute in the dtypes of PyTorch's lists") {
    for (const DType dtype : half_types) {
        const Tensor image = whole_numbers({2, 3, 6, 6}), filter = whole_numbers({4, 3, 3, 3});
        const Tensor matrix = whole_numbers({4, 4}), small = matrix.to(dtype), labels = Tensor::zeros({4}, DType::i64);
        const Tensor vector = Tensor::full({3}, 1), small_image = image.to(dtype);
        const Autocast scope(dtype);
        const std::vector<std::pair<const char*, Tensor>> narrows = {
            {"conv2d", conv2d(image, filter)},
            {"conv_transpose2d", conv_transpose2d(image, whole_numbers({3, 2, 2, 2}), whole_numbers({2}), 2)},
            {"linear", linear(matrix, matrix, whole_numbers({4}))},
            {"matmul", matmul(matrix, small)},
            {"conv1d", conv1d(whole_numbers({2, 3, 6}), whole_numbers({4, 3, 3}))},
            {"conv3d", conv3d(whole_numbers({2, 3, 2, 3, 3}), whole_numbers({4, 3, 2, 2, 2}))},
            {"prelu", prelu(small, Tensor::full({1}, 1))},
            {"attention", scaled_dot_product_attention(matrix, matrix, small)},
            {"relu", relu(small)},
            {"hardswish", hardswish(small)},
            {"avg_pool2d", avg_pool2d(small_image, 2)},
            {"max_pool2d", max_pool2d(small_image, 2)},
            {"interpolate", interpolate(small_image, {.scale_factor = ScaleFactor(2)})},
            {"pad", pad(small_image, {1, 1})},
            {"dropout", dropout(small, 0.5, true)},
            {"batch_norm", batch_norm(small_image, Tensor::zeros({3}), vector, vector, vector, {.training = true})},
            {"cat of one dtype", cat({small, small})},
            {"a number as operand", small * 2.0 + 1.0},
        };
        for (const auto& [name, result] : narrows) {
            CAPTURE(name);
            CHECK(result.dtype() == dtype);
        }
        const std::vector<std::pair<const char*, Tensor>> wides = {
            {"softmax", softmax(small, 1)},
            {"log_softmax", log_softmax(small, 1)},
            {"layer_norm", layer_norm(small, {4})},
            {"exp", exp(small)},
            {"log", log(exp(small))},
            {"square", square(small)},
            {"pow", pow(small, 2)},
            {"rsqrt", rsqrt(small)},
            {"norm", norm(small)},
            {"softplus", softplus(small)},
            {"prod", prod(small)},
            {"cumsum", cumsum(small, 1)},
            {"group_norm", group_norm(small_image, 3, vector, vector)},
            {"cosine_similarity", cosine_similarity(small, matrix)},
            {"sum", sum(small)},
            {"mean", mean(small)},
            {"cross_entropy", cross_entropy(small, labels).value()},
            {"nll_loss", nll_loss(small, labels).value()},
            {"mse_loss", mse_loss(small, matrix).value()},
            {"bce", binary_cross_entropy_with_logits(small, matrix).value()},
            {"l1_loss", l1_loss(small, matrix).value()},
            {"kl_div", kl_div(small, matrix).value()},
            {"gaussian_nll_loss", gaussian_nll_loss(small, matrix, small).value()},
            {"dice_loss", dice_loss(small_image, image).value()},
            {"mean_loss", mean_loss(small).value()},
            {"add", small + matrix},
            {"mul", matrix * small},
            {"cat", cat({small, matrix})},
            {"relu", relu(matrix)},
        };
        for (const auto& [name, result] : wides) {
            CAPTURE(name);
            CHECK(result.dtype() == DType::f32);
        }
        CHECK(matmul(matrix.to(DType::f64), matrix.to(DType::f64)).dtype() == DType::f64);
    }
}

TEST_CASE("the innermost live scope applies, and backward has none") {
    const Tensor a = whole_numbers({4, 4}), b = whole_numbers({4, 4}).requires_grad_();
    CHECK(matmul(a, b).dtype() == DType::f32);
    {
        const Autocast outer(DType::bf16);
        CHECK(matmul(a, b).dtype() == DType::bf16);
        {
            const Autocast inner(DType::f16);
            CHECK(matmul(a, b).dtype() == DType::f16);
        }
        {
            const Autocast off(std::nullopt);
            CHECK(matmul(a, b).dtype() == DType::f32);
            CHECK_FALSE(Autocast::dtype());
        }
        sum(matmul(a, b)).backward();
        CHECK(Autocast::dtype() == DType::bf16);
    }
    REQUIRE(b.grad().dtype() == DType::f32);
    const Tensor expected = matmul(a.transpose(0, 1), Tensor::full({4, 4}, 1));
    CHECK(values_of(b.grad()) == values_of(expected));
    CHECK(message_of<InvalidArgument>([] { const Autocast scope(DType::f32); }) ==
          "Autocast: dtype f32 is not a 16-bit float; expected DType::f16, DType::bf16 or std::nullopt");
}

TEST_CASE("a parameter is converted once per scope, and again after a write") {
    const Tensor weight = whole_numbers({3, 3}).requires_grad_();
    const Autocast scope(DType::bf16);
    const Tensor once = Autocast::cast(weight, DType::bf16), twice = Autocast::cast(weight, DType::bf16);
    CHECK(once.impl() == twice.impl());
    {
        const NoGrad no_grad;
        CHECK_FALSE(Autocast::cast(weight, DType::bf16).requires_grad());
        weight.fill_(5);
    }
    CHECK(values_of(Autocast::cast(weight, DType::bf16)) == std::vector<float>(9, 5));
    const Tensor x = whole_numbers({3, 3});
    CHECK(Autocast::cast(x, DType::bf16).impl() != Autocast::cast(x, DType::bf16).impl());
}

TEST_CASE("16-bit results are rounded f32 results, from every layout") {
    for (const DType dtype : half_types)
        for (const Device device : {Device::host(), Device::cpu(0)})
            for (const std::int64_t channels : {3, 16}) {
                const Tensor x = (whole_numbers({2, channels, 6, 6}) * 0.37).to(dtype).to(device);
                const Tensor w = (whole_numbers({16, channels, 3, 3}) * 0.11).to(dtype).to(device);
                CAPTURE(channels);
                const auto compute = [](const Tensor& image, const Tensor& filter) {
                    return conv2d(image, filter, Tensor(), 1, 1);
                };
                const Tensor y = compute(x, w), expected = compute(x.to(DType::f32), w.to(DType::f32));
                REQUIRE(y.dtype() == dtype);
                const float step = dtype == DType::bf16 ? 0x1p-8f : 0x1p-11f;
                const auto found = values_of(y), exact = values_of(expected);
                for (std::size_t i = 0; i < found.size(); ++i)
                    CHECK(std::abs(found[i] - exact[i]) <= step * std::abs(exact[i]) + 1e-5f);
                // ReLU of a convolution's result, in any layout, and of a view of it.
                const Tensor rows = y.slice(0, 1, 2);
                auto positive = values_of(y);
                for (float& value : positive) value = std::max(value, 0.0f);
                CHECK(values_of(relu(compute(x, w))) == positive);
                positive.erase(positive.begin(), positive.begin() + static_cast<std::ptrdiff_t>(positive.size() / 2));
                CHECK(values_of(relu(rows)) == positive);
            }
}

TEST_CASE("dropout of 16-bit floats scales by 1 / (1 - p) in f32") {
    // bf16 would round 1 / 0.9 to 1.109375, and each element of 100 would be 111 instead of 111.111.
    const Tensor y = dropout(Tensor::full({64}, 100).to(DType::f16), 0.1, true);
    for (const float value : values_of(y)) CHECK((value == 0 || value == 111.125f));
}

TEST_CASE("a layer normalises 16-bit images with f32 parameters and statistics") {
    BatchNorm2d norm(3);
    const Tensor x = whole_numbers({2, 3, 4, 4}, DType::bf16);
    const Tensor y = norm(x);
    CHECK(y.dtype() == DType::bf16);
    sum(y.to(DType::f32)).backward();
    CHECK(norm.weight->tensor().grad().dtype() == DType::f32);
    CHECK(norm.running_mean->tensor().dtype() == DType::f32);
    const Tensor narrow_statistics = Tensor::zeros({3}, DType::bf16);
    CHECK(message_of<InvalidArgument>([&] {
              (void)batch_norm(x, narrow_statistics, narrow_statistics, Tensor(), Tensor(), {.training = true});
          }) ==
          "batch_norm: running statistics of bf16 cannot be trained with an input of bf16; expected f32 (use "
          ".to(dtype))");
}

TEST_CASE("outside a scope, sums are promoted and dtypes of matrix products cannot be mixed") {
    const Tensor a = whole_numbers({2, 2}), b = a.to(DType::bf16);
    CHECK(message_of<InvalidArgument>([&] { (void)matmul(a, b); }) ==
          "matmul: the second tensor has dtype bf16; expected f32 like the others (use .to(dtype))");
    CHECK((a + b).dtype() == DType::f32);
    CHECK((b + b).dtype() == DType::bf16);
}

TEST_CASE("a converted parameter serves several backwards of a scope, sequential or interleaved") {
    const Tensor weight = whole_numbers({4, 4}).requires_grad_(), x = whole_numbers({4, 4});
    const auto loss = [&] { return sum(matmul(x, weight)); };
    loss().backward();
    const std::vector<float> once = values_of(weight.grad());
    weight.set_grad(Tensor());
    const Autocast scope(DType::bf16);
    loss().backward();
    loss().backward();
    const Tensor first = loss(), second = loss();
    first.backward();
    second.backward();
    std::vector<float> expected = once;
    for (float& value : expected) value *= 4;
    CHECK(values_of(weight.grad()) == expected);
}
