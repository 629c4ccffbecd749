// Tensors of several dtypes in one call, and functions of integers and bool. The tables of dtypes are those that
// PyTorch 2.6 gives for torch.ones(2, dtype=a) + torch.ones(2 or (), dtype=b).
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using test::contains;
using test::message_of;

namespace {

using enum DType;
using Kinds = std::array<DType, 8>;
using Doubles = std::vector<double>;
using Integers = std::vector<std::int64_t>;

constexpr Kinds all_kinds{f32, f64, f16, bf16, i32, i64, u8, boolean};
constexpr std::array<Kinds, 8> of_vectors{{{f32, f64, f32, f32, f32, f32, f32, f32},
                                           {f64, f64, f64, f64, f64, f64, f64, f64},
                                           {f32, f64, f16, f32, f16, f16, f16, f16},
                                           {f32, f64, f32, bf16, bf16, bf16, bf16, bf16},
                                           {f32, f64, f16, bf16, i32, i64, i32, i32},
                                           {f32, f64, f16, bf16, i64, i64, i64, i64},
                                           {f32, f64, f16, bf16, i32, i64, u8, u8},
                                           {f32, f64, f16, bf16, i32, i64, u8, boolean}}};
constexpr std::array<Kinds, 8> with_scalars{{{f32, f32, f32, f32, f32, f32, f32, f32},
                                             {f64, f64, f64, f64, f64, f64, f64, f64},
                                             {f16, f16, f16, f16, f16, f16, f16, f16},
                                             {bf16, bf16, bf16, bf16, bf16, bf16, bf16, bf16},
                                             {f32, f64, f16, bf16, i32, i32, i32, i32},
                                             {f32, f64, f16, bf16, i64, i64, i64, i64},
                                             {f32, f64, f16, bf16, u8, u8, u8, u8},
                                             {f32, f64, f16, bf16, i32, i64, u8, boolean}}};

Doubles in_doubles(const Tensor& x) { return x.to(f64).to_vector<double>(); }

/// 0, 1, 1, 0, or 3, 1, 2, 0.
Tensor four(DType dtype, Device device = Device::host()) {
    const std::vector<float> values =
        dtype == boolean ? std::vector<float>{0, 1, 1, 0} : std::vector<float>{3, 1, 2, 0};
    return Tensor::from(values, {4}).to(dtype).to(device);
}

Doubles combined(const Doubles& a, const Doubles& b, const std::function<double(double, double)>& function) {
    Doubles y;
    for (std::size_t i = 0; i < a.size(); ++i) y.push_back(function(a[i], b[b.size() == 1 ? 0 : i]));
    return y;
}

Tensor integers(const Integers& values, DType dtype = i64) {
    return Tensor::from(values, {std::ssize(values)}).to(dtype);
}

struct Masked {
    Linear fc{3, 3};
    bool as_bool = false;
    LOCKSTEP_MEMBERS(fc)
    Tensor forward(const Tensor& x) {
        const Tensor y = fc(x), mask = y > 0;
        return y * (as_bool ? mask : mask.to(f32)) + cumsum(as_bool ? mask : mask.to(f32), 1);
    }
};

}  // namespace

TEST_CASE("tensors of any two dtypes are combined in the dtype that PyTorch takes") {
    for (const Device device : {Device::host(), Device::cpu(0)})
        for (std::size_t i = 0; i < 8; ++i)
            for (std::size_t j = 0; j < 8; ++j)
                for (const bool scalar : {false, true}) {
                    const DType expected = (scalar ? with_scalars : of_vectors)[i][j];
                    const Tensor a = four(all_kinds[i], device);
                    const Tensor b =
                        scalar ? four(all_kinds[j], device).slice(0, 1, 2).reshape({}) : four(all_kinds[j], device);
                    CAPTURE(a.dtype(), b.dtype(), scalar, device.str());
                    const Doubles x = in_doubles(a), y = in_doubles(b);
                    const bool is_bool = expected == boolean;
                    const auto check = [&](const Tensor& found, DType dtype, auto function) {
                        CHECK(found.dtype() == dtype);
                        CHECK(in_doubles(found) == combined(x, y, function));
                    };
                    check(add(a, b), expected, [&](double p, double q) { return is_bool ? std::max(p, q) : p + q; });
                    check(mul(a, b), expected, [](double p, double q) { return p * q; });
                    check(maximum(a, b), expected, [](double p, double q) { return std::max(p, q); });
                    check(minimum(b, a), expected, [](double p, double q) { return std::min(p, q); });
                    check(eq(a, b), boolean, [](double p, double q) { return p == q; });
                    check(lt(a, b), boolean, [](double p, double q) { return p < q; });
                    check(where(four(boolean, device), a, b), expected, [k = 0](double p, double q) mutable {
                        const bool first = k == 1 || k == 2;
                        ++k;
                        return first ? p : q;
                    });
                    check(logical_and(a, b), boolean, [](double p, double q) { return p != 0 && q != 0; });
                    CHECK(div(a, b).dtype() == (is_floating(expected) ? expected : f32));
                    CHECK(promote_types(a.dtype(), b.dtype()) == of_vectors[i][j]);
                    if (a.dtype() != boolean && b.dtype() != boolean && expected != u8)
                        check(sub(a, b), expected, [](double p, double q) { return p - q; });
                    if (scalar) continue;
                    const Tensor joined = cat({a, b});
                    CHECK(joined.dtype() == expected);
                    Doubles both = x;
                    both.insert(both.end(), y.begin(), y.end());
                    CHECK(in_doubles(joined) == both);
                    CHECK(stack({a, b}).dtype() == expected);
                    CHECK(outer(a, b).dtype() == expected);
                }
}

TEST_CASE("numbers do not change the dtype of a tensor of the same kind") {
    for (const DType dtype : all_kinds) {
        CAPTURE(name_of(dtype));
        const Tensor x = four(dtype);
        const bool floating = is_floating(dtype);
        CHECK((x + true).dtype() == dtype);
        CHECK((x * 2).dtype() == (dtype == boolean ? i64 : dtype));
        CHECK((2 + x).dtype() == (dtype == boolean ? i64 : dtype));
        CHECK((x * 2.5).dtype() == (floating ? dtype : f32));
        CHECK((x / 2).dtype() == (floating ? dtype : f32));
        CHECK((6 / (x + 1)).dtype() == (floating ? dtype : f32));
        CHECK(where(x > 0, 2.5, x).dtype() == (floating ? dtype : f32));
        CHECK(where(x > 0, x, 2).dtype() == (dtype == boolean ? i64 : dtype));
        CHECK(where(x > 0, x, true).dtype() == dtype);
        CHECK(in_doubles(x * 2.5) == combined(in_doubles(x), {2.5}, std::multiplies<>()));
        CHECK(in_doubles(x + 2) == combined(in_doubles(x), {2}, std::plus<>()));
        CHECK(clamp(x, 1, 2.5).dtype() == (floating ? dtype : f32));
        CHECK(clamp(x, 0, 1).dtype() == (dtype == boolean ? i64 : dtype));
        CHECK(pow(x, 3).dtype() == (dtype == boolean ? i64 : dtype));
        CHECK(pow(x, 0.5).dtype() == (floating ? dtype : f32));
    }
    CHECK((four(boolean) + true).to_vector<bool>() == std::vector<bool>{true, true, true, true});
    CHECK((four(boolean) * false).to_vector<bool>() == std::vector<bool>{false, false, false, false});
}

TEST_CASE("differences of bool and numbers that a dtype does not have are refused") {
    const Tensor mask = four(boolean), x = four(f32), bytes = four(u8);
    for (const auto& call :
         std::vector<std::function<void()>>{[&] { sub(x, mask); }, [&] { sub(mask, x); }, [&] { mask - mask; },
                                            [&] { 1 - mask; }, [&] { mask - 1.5; }})
        CHECK(message_of<InvalidArgument>(call) ==
              "sub: a tensor has dtype bool; expected numbers (use logical_not to invert a mask, or .to(dtype))");
    CHECK(contains(message_of<InvalidArgument>([&] { neg(mask); }), "neg: a tensor has dtype bool"));
    CHECK(message_of<InvalidArgument>([&] { masked_fill(bytes, mask, 300); }) ==
          "masked_fill: the number 300 with a tensor of u8; expected a number of that dtype");
    CHECK(message_of<InvalidArgument>([&] { masked_fill(bytes, mask, 1.5); }) ==
          "masked_fill: the number 1.5 with a tensor of u8; expected a number of that dtype");
    CHECK(message_of<InvalidArgument>([&] { clamp(bytes, -1, 10); }) ==
          "clamp: the number -1 with a tensor of u8; expected a number of that dtype");
    CHECK(message_of<InvalidArgument>([&] { pow(bytes, -1); }) ==
          "pow: a negative exponent (-1) with a tensor of u8; expected 0 or more, or a tensor of floats");
    // Other functions still require one dtype.
    CHECK(message_of<InvalidArgument>([&] {
              matmul(Tensor::zeros({2, 2}), Tensor::zeros({2, 2}, f64));
          }) == "matmul: the second tensor has dtype f64; expected f32 like the others (use .to(dtype))");
    CHECK(contains(message_of<InvalidArgument>([&] { gelu(bytes); }), "gelu: the tensor (4,) has dtype u8"));
    CHECK(contains(message_of<InvalidArgument>([&] { mean(bytes); }), "mean: the tensor (4,) has dtype u8"));
}

TEST_CASE("gradients through a conversion have the dtype of the input") {
    const Tensor x = Tensor::from(std::vector<float>{1, -2, 3}, {3}).to(f16).requires_grad_();
    const Tensor y = Tensor::from(std::vector<float>{4, 5, 6}, {3}).requires_grad_();
    const Tensor steps = integers({1, 2, 3}), mask = integers({1, 0, 1}).to(boolean);
    sum(x * y * steps * mask + maximum(x, steps)).backward();
    CHECK(x.grad().dtype() == f16);
    CHECK(in_doubles(x.grad()) == Doubles{4 + 0.5, 0, 18 + 0.5});
    CHECK(y.grad().dtype() == f32);
    CHECK(in_doubles(y.grad()) == Doubles{1, 0, 9});
}

TEST_CASE("a step with masks of bool has the bits of one with masks of floats") {
    const Tensor x = Tensor::randn({6, 3}), t = Tensor::randn({6, 3});
    const Masked start;
    std::vector<std::vector<float>> weights;
    for (const bool as_bool : {false, true}) {
        Masked net = start;
        net.as_bool = as_bool;
        DataParallel<Masked> model(net, {Device::cpu(0), Device::cpu(1)});
        SGD sgd(model, {.lr = 0.1});
        for (int step = 0; step < 3; ++step) (void)model.step(sgd, x, t, mse_loss);
        weights.push_back(model->fc.weight->to(Device::host()).to_vector<float>());
    }
    CHECK(weights[0] == weights[1]);
}

TEST_CASE("functions of integers that give integers") {
    constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min(),
                           most = std::numeric_limits<std::int64_t>::max();
    const Tensor x = integers({-7, 0, 5, most, least});
    CHECK(neg(x).to_vector<std::int64_t>() == Integers{7, 0, -5, -most, least});
    CHECK(abs(x).to_vector<std::int64_t>() == Integers{7, 0, 5, most, least});
    CHECK(sign(x).to_vector<std::int64_t>() == Integers{-1, 0, 1, 1, -1});
    CHECK(relu(x).to_vector<std::int64_t>() == Integers{0, 0, 5, most, 0});
    CHECK(clamp(x, -2, 3).to_vector<std::int64_t>() == Integers{-2, 0, 3, 3, -2});
    CHECK(clamp(x, 3, -2).to_vector<std::int64_t>() == Integers(5, -2));
    CHECK(clamp(x, std::nullopt, 3).to_vector<std::int64_t>() == Integers{-7, 0, 3, 3, least});
    for (const auto function : std::vector<Tensor (*)(const Tensor&)>{floor, ceil, round, trunc}) {
        const Tensor y = function(x);
        CHECK(y.to_vector<std::int64_t>() == x.to_vector<std::int64_t>());
        y.zero_();
        CHECK(x.to_vector<std::int64_t>()[0] == -7);  // it was a copy
    }
    CHECK(square(integers({-7, 3}, i32)).to_vector<std::int32_t>() == std::vector<std::int32_t>{49, 9});
    CHECK(pow(integers({-3, 2, 0}), 5).to_vector<std::int64_t>() == Integers{-243, 32, 0});
    CHECK(pow(integers({-3, 2, 0}), 0).to_vector<std::int64_t>() == Integers{1, 1, 1});
    CHECK(pow(integers({10}), 18).to_vector<std::int64_t>() == Integers{1000000000000000000});
    CHECK(pow(integers({4, 9}), 0.5).to_vector<float>() == std::vector<float>{2, 3});
    // u8 has no negative numbers: they wrap around in neg, and abs changes nothing.
    const Tensor bytes = integers({1, 0, 200}, u8);
    CHECK(neg(bytes).to_vector<std::uint8_t>() == std::vector<std::uint8_t>{255, 0, 56});
    CHECK(abs(bytes).to_vector<std::uint8_t>() == std::vector<std::uint8_t>{1, 0, 200});
    CHECK(sign(bytes).to_vector<std::uint8_t>() == std::vector<std::uint8_t>{1, 0, 1});
    CHECK(relu(bytes).to_vector<std::uint8_t>() == std::vector<std::uint8_t>{1, 0, 200});
}

TEST_CASE("mathematical functions of integers and bool are those of f32") {
    for (const DType dtype : {i32, i64, u8, boolean})
        for (const auto& function : std::vector<Tensor (*)(const Tensor&)>{
                 exp, log,  log2, log10, exp2, sqrt, reciprocal, rsqrt, expm1, log1p,   erf,  sin, cos,
                 tan, asin, acos, atan,  sinh, cosh, asinh,      acosh, atanh, sigmoid, tanh, frac}) {
            const Tensor x = four(dtype), found = function(x), expected = function(x.to(f32));
            CHECK(found.dtype() == f32);
            const std::vector<float> a = found.to_vector<float>(), b = expected.to_vector<float>();
            CHECK(std::equal(a.begin(), a.end(), b.begin(), b.end(),
                             [](float p, float q) { return p == q || (std::isnan(p) && std::isnan(q)); }));
        }
    CHECK(isfinite(four(i64)).to_vector<bool>() == std::vector<bool>(4, true));
    CHECK(isnan(four(u8)).to_vector<bool>() == std::vector<bool>(4, false));
    CHECK(xlogy(integers({0, 2}), integers({0, 1})).to_vector<float>() == std::vector<float>{0, 0});
    CHECK(addcmul(integers({1}), integers({2}), Tensor::scalar(2.5).reshape({1})).item() == 6);
}

TEST_CASE("extremes and order of integers, among them the largest and the smallest") {
    constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min(),
                           most = std::numeric_limits<std::int64_t>::max();
    const auto check = [](const Integers& values, DType dtype) {
        CAPTURE(name_of(dtype), values);
        for (const Device device : {Device::host(), Device::cpu(0)}) {
            const Tensor x = integers(values, dtype).to(device);
            const auto number = [](const Tensor& y) { return y.to(i64).to_vector<std::int64_t>().at(0); };
            const auto largest = std::max_element(values.begin(), values.end());
            const auto smallest = std::min_element(values.begin(), values.end());
            CHECK(amax(x).dtype() == dtype);
            CHECK(number(amax(x)) == *largest);
            CHECK(number(amin(x, {0}, true)) == *smallest);
            CHECK(number(argmax(x)) == largest - values.begin());
            CHECK(number(argmin(x)) == smallest - values.begin());
            const ValuesAndIndices found = (max)(x, 0), least_one = (min)(x, 0);
            CHECK(found.values.dtype() == dtype);
            CHECK(number(found.values) == *largest);
            CHECK(number(least_one.indices) == smallest - values.begin());
            CHECK(number(aminmax(x).first) == *smallest);
            for (const bool descending : {false, true}) {
                std::vector<std::int64_t> order(values.size());
                std::iota(order.begin(), order.end(), 0);
                std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
                    const std::int64_t p = values[static_cast<std::size_t>(a)], q = values[static_cast<std::size_t>(b)];
                    return descending ? p > q : p < q;
                });
                const ValuesAndIndices sorted = sort(x, 0, descending);
                CHECK(sorted.values.dtype() == dtype);
                CHECK(sorted.indices.to_vector<std::int64_t>() == order);
                CHECK(argsort(x, 0, descending).to_vector<std::int64_t>() == order);
                CHECK(number(topk(x, 1, 0, descending).indices) == order[0]);
            }
            Integers in_order = values;
            std::sort(in_order.begin(), in_order.end());
            CHECK(number(median(x, 0).values) == in_order[(in_order.size() - 1) / 2]);
            CHECK(number(kthvalue(x, 2, 0).values) == in_order[1]);
        }
    };
    check({3, most, -5, least, 3, most - 1, 0, least + 1}, i64);
    check({3, 2147483647, -5, -2147483648LL, 3}, i32);
    check({0, 200, 7, 255, 255, 1}, u8);
    check({0, 1, 1, 0}, boolean);
    Integers many(300);
    for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<std::int64_t>(i * i * 7919 % 1009) - 500;
    check(many, i64);
}

TEST_CASE("cumulative sums and products of integers are i64 and wrap around") {
    for (const DType dtype : {i32, i64, u8, boolean}) {
        const Tensor x = four(dtype);
        Integers values = x.to(i64).to_vector<std::int64_t>(), sums(4), products(4);
        std::partial_sum(values.begin(), values.end(), sums.begin());
        std::partial_sum(values.begin(), values.end(), products.begin(), std::multiplies<>());
        for (const Device device : {Device::host(), Device::cpu(0)}) {
            CHECK(cumsum(x.to(device), 0).to_vector<std::int64_t>() == sums);
            CHECK(cumprod(x.to(device), 0).to_vector<std::int64_t>() == products);
            CHECK(prod(x.to(device)).to_vector<std::int64_t>() == Integers{products.back()});
            CHECK(prod(x.to(device), 0, true).to_vector<std::int64_t>() == Integers{products.back()});
        }
    }
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    CHECK(cumsum(integers({most, 1}), 0).to_vector<std::int64_t>() ==
          Integers{most, std::numeric_limits<std::int64_t>::min()});
    CHECK(cumsum(integers({(1LL << 60) + 1, 1}), 0).to_vector<std::int64_t>()[1] == (1LL << 60) + 2);  // not a double
    CHECK(cumsum(Tensor::scalar(7).to(u8), 0).dtype() == i64);
    CHECK(prod(Tensor::zeros({0}, i32)).to_vector<std::int64_t>() == Integers{1});
}
