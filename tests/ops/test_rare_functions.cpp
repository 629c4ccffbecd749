// Functions whose results have sizes that depend on values, special values of rare functions, and integers. Expected
// values are those of PyTorch 2.6, noted from a session.
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;

namespace {

using WholeNumbers = std::vector<std::int64_t>;
constexpr float infinite = std::numeric_limits<float>::infinity();
constexpr float undefined = std::numeric_limits<float>::quiet_NaN();

Tensor list_of(const std::vector<float>& values, Device device = {}) {
    return Tensor::from(values, {static_cast<std::int64_t>(values.size())}, device);
}
Tensor whole_list(const WholeNumbers& values, Device device = {}) {
    return Tensor::from(values, {static_cast<std::int64_t>(values.size())}, device);
}

/// Equal numbers, or both NaN, with the signs of zeros.
void check_list(const Tensor& found, const std::vector<float>& expected) {
    const std::vector<float> values = found.to_vector<float>();
    REQUIRE(values.size() == expected.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
        INFO(i);
        if (std::isnan(expected[i])) {
            CHECK(std::isnan(values[i]));
        } else {
            CHECK(values[i] == expected[i]);
            CHECK(std::signbit(values[i]) == std::signbit(expected[i]));
        }
    }
}

/// A model whose forward calls a function.
struct CallsFunction {
    Linear fc{4, 4};
    LOCKSTEP_MEMBERS(fc)
    Tensor (*function)(const Tensor&) = nullptr;
    Tensor forward(const Tensor& x) { return fc(x) + function(x); }
    void describe(Signature& signature) const { signature.add(function != nullptr); }
};

Tensor twice_selected(const Tensor& x) { return masked_select(x, x > 0).reshape({1, -1}); }
Tensor first_values(const Tensor& x) { return unique(x).values; }
Tensor positions_in(const Tensor& x) { return nonzero(x); }
Tensor counted(const Tensor& x) { return bincount(x.to(DType::i64).flatten()); }
Tensor compared(const Tensor& x) { return allclose(x, x) ? x : x * 2; }
Tensor same_as_itself(const Tensor& x) { return lockstep::equal(x, x) ? x : x * 2; }

}  // namespace

TEST_CASE("nonzero and masked_select") {
    for (const Device device : {Device::host(), Device::cpu(0)}) {
        const Tensor x = list_of({0, 2, 0, -1, 3, 0}, device).reshape({2, 3});
        const Tensor at = nonzero(x);
        CHECK(at.shape() == Shape{3, 2});
        CHECK(at.device() == device);
        CHECK(at.to_vector<std::int64_t>() == WholeNumbers{0, 1, 1, 0, 1, 1});
        CHECK(nonzero(x.transpose(0, 1)).to_vector<std::int64_t>() == WholeNumbers{0, 1, 1, 0, 1, 1});
        CHECK(nonzero(Tensor::zeros({2, 3}, DType::f32, device)).shape() == Shape{0, 2});
        CHECK(nonzero(Tensor::full({}, 7, DType::i32, device)).shape() == Shape{1, 0});
        CHECK(nonzero(x > 1).to_vector<std::int64_t>() == WholeNumbers{0, 1, 1, 1});

        const Tensor leaf = x.clone().detach().requires_grad_();
        const Tensor chosen = masked_select(leaf, leaf > 0);
        CHECK(chosen.to_vector<float>() == std::vector<float>{2, 3});
        sum(chosen * chosen).backward();
        CHECK(leaf.grad().to_vector<float>() == std::vector<float>{0, 4, 0, 0, 6, 0});
        const Tensor columns = list_of({1, 0, 1}, device) > 0;
        CHECK(masked_select(x, columns).to_vector<float>() == std::vector<float>{0, 0, -1, 0});
        CHECK(masked_select(list_of({5, 6, 7}, device), x > 0).to_vector<float>() == std::vector<float>{6, 6});
    }
    CHECK(test::message_of<InvalidArgument>([&] { (void)masked_select(Tensor::zeros({3}), Tensor::zeros({3})); }) ==
          "masked_select: mask has dtype f32; expected bool");
}

TEST_CASE("unique returns ascending values, their positions and their numbers") {
    for (const Device device : {Device::host(), Device::cpu(0)}) {
        const UniqueResult of = unique(whole_list(WholeNumbers{3, 1, 2, 3, 1, 3}, device).reshape({2, 3}));
        CHECK(of.values.to_vector<std::int64_t>() == WholeNumbers{1, 2, 3});
        CHECK(of.inverse.to_vector<std::int64_t>() == WholeNumbers{2, 0, 1, 2, 0, 2});
        CHECK(of.inverse.shape() == Shape{2, 3});
        CHECK(of.counts.to_vector<std::int64_t>() == WholeNumbers{2, 1, 3});
        check_list(unique(list_of({2, undefined, -infinite, 2, undefined}, device)).values,
                   {-infinite, 2, undefined, undefined});
    }
    const UniqueResult none = unique(Tensor::zeros({0, 2}));
    CHECK(none.values.numel() == 0);
    CHECK(none.inverse.shape() == Shape{0, 2});
}

TEST_CASE("bincount") {
    for (const Device device : {Device::host(), Device::cpu(0)}) {
        const Tensor x = whole_list(WholeNumbers{1, 4, 1, 0}, device);
        CHECK(bincount(x).to_vector<std::int64_t>() == WholeNumbers{1, 2, 0, 0, 1});
        CHECK(bincount(x, {}, 7).to_vector<std::int64_t>() == WholeNumbers{1, 2, 0, 0, 1, 0, 0});
        CHECK(bincount(x, list_of({0.5f, 2, 1, 3}, device)).to_vector<float>() == std::vector<float>{3, 1.5f, 0, 0, 2});
        CHECK(bincount(x.slice(0, 0, 0), {}, 2).to_vector<std::int64_t>() == WholeNumbers{0, 0});
    }
    CHECK(test::message_of<InvalidArgument>([&] {
              (void)bincount(whole_list(WholeNumbers{1, -2}));
          }) == "bincount: a number is negative (-2); expected 0 or more");
    CHECK_THROWS_AS(bincount(Tensor::zeros({2})), InvalidArgument);
    CHECK_THROWS_AS(bincount(whole_list(WholeNumbers{1, 2}), Tensor::zeros({3})), InvalidArgument);
    CHECK_THROWS_AS(bincount(whole_list(WholeNumbers{1, 2}), {}, -1), InvalidArgument);
}

TEST_CASE("allclose, isclose and equal") {
    const Tensor a = list_of({1, infinite, -infinite, undefined, 0}),
                 b = list_of({1.000005f, infinite, infinite, undefined, 1e-9f});
    using Answers = std::vector<bool>;
    CHECK(isclose(a, b).to_vector<bool>() == Answers{true, true, false, false, true});
    CHECK(isclose(a, b, 1e-5, 1e-8, true).to_vector<bool>() == Answers{true, true, false, true, true});
    CHECK_FALSE(allclose(a, b));
    CHECK(allclose(a.slice(0, 0, 2), b.slice(0, 0, 2)));
    const Tensor large = whole_list(WholeNumbers{(std::int64_t{1} << 53) + 1, 5}),
                 other = whole_list(WholeNumbers{std::int64_t{1} << 53, 5});
    CHECK(isclose(large, other, 0, 0).to_vector<bool>() == Answers{false, true});
    CHECK(lockstep::equal(large, large));
    CHECK_FALSE(lockstep::equal(large, other));
    CHECK_FALSE(lockstep::equal(a, a));  // NaN
    CHECK_FALSE(lockstep::equal(a, a.unsqueeze(0)));
    CHECK_THROWS_AS(lockstep::equal(a, large), InvalidArgument);
    CHECK_THROWS_AS(isclose(a, b, -1), InvalidArgument);
}

TEST_CASE("functions that need values are refused while forward is traced") {
    const struct {
        const char* name;
        Tensor (*function)(const Tensor&);
    } all[] = {{"masked_select", twice_selected},
               {"unique", first_values},
               {"nonzero", positions_in},
               {"bincount", counted},
               {"allclose", compared},
               {"equal", same_as_itself}};
    for (const auto& [name, function] : all) {
        INFO(name);
        CallsFunction net;
        net.function = function;
        DataParallel<CallsFunction> model(net, test::cpu_devices(2));
        CHECK(test::contains(test::message_of<InvalidArgument>([&] {
                                 (void)model.forward(Tensor::ones({4, 4}));
                             }),
                             name + std::string(": the result depends on values that a traced forward does not have")));
    }
}

TEST_CASE("special values of rare functions") {
    for (const Device device : {Device::host(), Device::cpu(0)}) {
        const auto of = [&](const std::vector<float>& values) { return list_of(values, device); };
        check_list(erfc(of({infinite, -infinite, 0, undefined})), {0, 2, 1, undefined});
        check_list(erfinv(of({1, -1, 0, -0.0f, 1.5f, -2, undefined})),
                   {infinite, -infinite, 0, -0.0f, undefined, undefined, undefined});
        check_list(lockstep::lgamma(of({0, -0.0f, -1, 1, 2, infinite, -infinite, undefined})),
                   {infinite, infinite, infinite, 0, 0, infinite, infinite, undefined});
        check_list(digamma(of({0, -0.0f, -1, -2, infinite, undefined})),
                   {-infinite, infinite, undefined, undefined, infinite, undefined});
        check_list(polygamma(1, of({0, -1, infinite, undefined})), {infinite, infinite, 0, undefined});
        // By the reflection formula, also far from 0, where a recurrence would take as many steps.
        const Tensor negative = Tensor::from(std::vector<double>{-0.5, -1.25, -1e9 + 0.5}, {3}, device);
        const std::vector<double> slopes = polygamma(1, negative).to_vector<double>();
        const std::vector<double> curvatures = polygamma(2, negative).to_vector<double>();
        CHECK(slopes[0] == Approx(8.934802200544679));
        CHECK(slopes[1] == Approx(19.181879647672456));
        CHECK(slopes[2] == Approx(9.869604401089358));
        CHECK(curvatures[0] == Approx(-0.8287966442342711));
        CHECK(curvatures[1] == Approx(123.72136678382508));
        check_list(sinc(of({0, -0.0f, undefined})), {1, 1, undefined});
        check_list(lockstep::copysign(of({1, -2, 0, 3}), of({-0.0f, 0, -1, -infinite})), {-1, 2, -0.0f, -3});
        check_list(lockstep::fmax(of({1, undefined, undefined}), of({undefined, 2, undefined})), {1, 2, undefined});
        check_list(heaviside(of({-1, 0, -0.0f, 2, undefined}), of({0.5f})), {0, 0.5f, 0.5f, 1, undefined});
        check_list(floor_divide(of({5, -5, 0, 1, -0.0f}), of({0, 0, 0, -infinite, 2})),
                   {infinite, -infinite, undefined, -1, -0.0f});
        check_list(logcumsumexp(of({-infinite, -infinite, 1000, undefined}), 0),
                   {-infinite, -infinite, 1000, undefined});
        check_list(cummax(of({1, undefined, 3, undefined}), 0).values, {1, undefined, undefined, undefined});
        CHECK(cummax(of({1, undefined, 3, undefined}), 0).indices.to_vector<std::int64_t>() ==
              WholeNumbers{0, 1, 1, 3});
        CHECK(searchsorted(of({1, 3, 5}), of({undefined, infinite, -infinite, 3})).to_vector<std::int64_t>() ==
              WholeNumbers{3, 3, 0, 1});
        CHECK(searchsorted(of({}), of({1, 2})).to_vector<std::int64_t>() == WholeNumbers{0, 0});
        // The gradient of sinc at 0 is 0.
        const Tensor zero = of({0}).requires_grad_();
        sinc(zero).backward();
        CHECK(zero.grad().item() == 0);
    }
}

TEST_CASE("quotients, remainders and powers of integers") {
    const std::int64_t least = std::numeric_limits<std::int64_t>::min();
    for (const Device device : {Device::host(), Device::cpu(0)}) {
        const Tensor a = whole_list(WholeNumbers{7, -7, 7, -7, least}, device),
                     b = whole_list(WholeNumbers{2, 2, -2, -2, -1}, device);
        CHECK(floor_divide(a, b).to_vector<std::int64_t>() == WholeNumbers{3, -4, -4, 3, least});
        CHECK(div(a, b, RoundingMode::trunc).to_vector<std::int64_t>() == WholeNumbers{3, -3, -3, 3, least});
        CHECK(lockstep::fmod(a, b).to_vector<std::int64_t>() == WholeNumbers{1, -1, 1, -1, 0});
        CHECK(lockstep::remainder(a, b).to_vector<std::int64_t>() == WholeNumbers{1, 1, -1, -1, 0});
        CHECK(lockstep::pow(whole_list(WholeNumbers{2, -1, -1, 1, 0, 3}, device),
                            whole_list(WholeNumbers{-1, -3, -2, -5, 0, 4}, device))
                  .to_vector<std::int64_t>() == WholeNumbers{0, -1, 1, 1, 1, 81});
        CHECK(lockstep::pow(2, whole_list(WholeNumbers{3, 10}, device)).to_vector<std::int64_t>() ==
              WholeNumbers{8, 1024});
        CHECK(floor_divide(a.to(DType::i32), 2).dtype() == DType::i32);
        CHECK(lockstep::remainder(a > 0, 2).dtype() == DType::i64);
        CHECK(lockstep::fmod(whole_list(WholeNumbers{200}, device).to(DType::u8), 7).to(DType::i64).item() == 4);
        CHECK(lockstep::pow(whole_list(WholeNumbers{16}, device).to(DType::u8),
                            whole_list(WholeNumbers{3}, device).to(DType::u8))
                  .to(DType::i64)
                  .item() == 0);  // 4096 modulo 256
        CHECK(floor_divide(a, 2.0).dtype() == DType::f32);
        CHECK(test::message_of<InvalidArgument>([&] {
                  (void)floor_divide(a, whole_list(WholeNumbers{1, 1, 0, 1, 1}, device)).to_vector<std::int64_t>();
              }) == "floor_divide: the divisor in row 2 is the integer 0; expected another number");
        CHECK_THROWS_AS(lockstep::remainder(a, 0).to_vector<std::int64_t>(), InvalidArgument);
    }
    CHECK_THROWS_AS(floor_divide(Tensor::ones({2}) > 0, Tensor::ones({2}) > 0), InvalidArgument);
}

TEST_CASE("extrema at indices of the largest and the smallest integers") {
    const std::int64_t least = std::numeric_limits<std::int64_t>::min();
    const Tensor index = whole_list(WholeNumbers{0, 0, 1, 1}), zeros = Tensor::zeros({2}, DType::i64);
    const Tensor x = whole_list(WholeNumbers{0, 7, 255, 1}).to(DType::u8);
    const auto reduced = [&](const Tensor& source, ScatterReduction reduce) {
        return scatter_reduce(zeros.to(source.dtype()), 0, index, source, reduce, false)
            .to(DType::i64)
            .to_vector<std::int64_t>();
    };
    CHECK(reduced(x, ScatterReduction::amin) == WholeNumbers{0, 1});
    CHECK(reduced(x, ScatterReduction::amax) == WholeNumbers{7, 255});
    const Tensor wide = whole_list(WholeNumbers{least, 5, -1, 3});
    CHECK(reduced(wide, ScatterReduction::amin) == WholeNumbers{least, -1});
    CHECK(reduced(wide, ScatterReduction::amax) == WholeNumbers{5, 3});
}

TEST_CASE("multinomial draws categories by their weights") {
    manual_seed(3);
    const std::int64_t rows = 4000;
    for (const Device device : {Device::host(), Device::cpu(0)}) {
        const Tensor weights = list_of({1, 0, 2, 5}, device).expand({rows, 4}).clone();
        const Tensor once = multinomial(weights, 1), many = multinomial(weights, 3),
                     again = multinomial(weights, 6, true);
        CHECK(once.shape() == Shape{rows, 1});
        CHECK(again.shape() == Shape{rows, 6});
        for (const Tensor& drawn : {once, again}) {
            const std::vector<std::int64_t> counts = bincount(drawn.flatten(), {}, 4).to_vector<std::int64_t>();
            const auto all = static_cast<double>(drawn.numel());
            CHECK(counts[1] == 0);
            CHECK(static_cast<double>(counts[0]) / all == Approx(1.0 / 8).margin(0.03));
            CHECK(static_cast<double>(counts[2]) / all == Approx(2.0 / 8).margin(0.03));
            CHECK(static_cast<double>(counts[3]) / all == Approx(5.0 / 8).margin(0.03));
        }
        // Without replacement, the three categories with weight in some order.
        CHECK(all(eq(sum(many, 1), 5)).item() == 1);
        CHECK(all(ne(many, 1)).item() == 1);
        CHECK(multinomial(weights.select(0, 0), 2).shape() == Shape{2});
    }
    CHECK_THROWS_AS(multinomial(Tensor::ones({3}), 4), InvalidArgument);
    CHECK_THROWS_AS(multinomial(Tensor::ones({3}), 0), InvalidArgument);
    CHECK_THROWS_AS(multinomial(Tensor::ones({2, 2, 2}), 1), InvalidArgument);
}

TEST_CASE("randint, randperm and logspace") {
    manual_seed(4);
    const Tensor dice = Tensor::randint(1, 7, {6000});
    CHECK(dice.dtype() == DType::i64);
    CHECK(amin(dice).item() == 1);
    CHECK(amax(dice).item() == 6);
    for (const std::int64_t count : bincount(dice - 1).to_vector<std::int64_t>()) CHECK(std::abs(count - 1000) < 150);
    CHECK(Tensor::randint(-5, -4, {2, 3}, DType::f32).to_vector<float>() == std::vector<float>(6, -5));
    const std::int64_t least = std::numeric_limits<std::int64_t>::min(),
                       most = std::numeric_limits<std::int64_t>::max();
    CHECK(amin(Tensor::randint(least, most, {100})).item() < -0x1p60);
    CHECK_THROWS_AS(Tensor::randint(3, 3, {1}), InvalidArgument);
    const Tensor order = Tensor::randperm(100);
    CHECK(sort(order).values.to_vector<std::int64_t>() == Tensor::arange(100, DType::i64).to_vector<std::int64_t>());
    CHECK_FALSE(order.to_vector<std::int64_t>() == Tensor::arange(100, DType::i64).to_vector<std::int64_t>());
    CHECK(Tensor::randperm(0).numel() == 0);
    CHECK(Tensor::logspace(-1, 2, 4).to_vector<float>() == std::vector<float>{0.1f, 1, 10, 100});
    CHECK(Tensor::logspace(0, 3, 4, 2).to_vector<float>() == std::vector<float>{1, 2, 4, 8});
}
