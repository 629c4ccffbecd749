// Special values of functions, and functions of integers. Expected values are those of PyTorch 2.6, noted from a
// session.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/ops/value_lists.h"

using namespace lockstep;

namespace {

using test::infinite;
using test::list_of;
using test::undefined;
using test::whole_list;
using test::WholeNumbers;

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

}  // namespace

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
        // Halfway between poles, where terms of high orders cancel (mpmath).
        const Tensor halves = Tensor::from(std::vector<double>{-0.5, -2.5}, {2}, device);
        CHECK(polygamma(12, halves).to_vector<double>()[0] == Approx(-2464477.609426829));
        CHECK(polygamma(30, halves).to_vector<double>()[1] == Approx(-3611857616302858.0));
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

TEST_CASE("functions of bits keep the dtype, and shifts by too many bits move all bits out") {
    for (const Device device : {Device::host(), Device::cpu(0)}) {
        const Tensor x = whole_list(WholeNumbers{-8, 5, 127, -1}, device);
        CHECK(bitwise_and(x, 6).to_vector<std::int64_t>() == WholeNumbers{0, 4, 6, 6});
        CHECK(bitwise_or(x, 6).to_vector<std::int64_t>() == WholeNumbers{-2, 7, 127, -1});
        CHECK(bitwise_xor(x, -1).to_vector<std::int64_t>() == WholeNumbers{7, -6, -128, 0});
        CHECK(bitwise_not(x).to_vector<std::int64_t>() == WholeNumbers{7, -6, -128, 0});
        const Tensor bits = whole_list(WholeNumbers{1, 64, -1, 63}, device);
        CHECK(bitwise_left_shift(x, bits).to_vector<std::int64_t>() ==
              WholeNumbers{-16, 0, 0, std::numeric_limits<std::int64_t>::min()});
        CHECK(bitwise_right_shift(x, bits).to_vector<std::int64_t>() == WholeNumbers{-4, 0, 0, -1});
        const Tensor narrow = x.to(DType::i32);
        CHECK(bitwise_left_shift(narrow, 31).to_vector<std::int32_t>() ==
              std::vector<std::int32_t>{0, std::numeric_limits<std::int32_t>::min(),
                                        std::numeric_limits<std::int32_t>::min(),
                                        std::numeric_limits<std::int32_t>::min()});
        CHECK(bitwise_left_shift(narrow, 32).to_vector<std::int32_t>() == std::vector<std::int32_t>{0, 0, 0, 0});
        CHECK(bitwise_right_shift(narrow, 40).to_vector<std::int32_t>() == std::vector<std::int32_t>{-1, 0, 0, -1});
        const Tensor bytes = whole_list(WholeNumbers{200, 5}, device).to(DType::u8);
        CHECK(bitwise_not(bytes).to_vector<std::uint8_t>() == std::vector<std::uint8_t>{55, 250});
        CHECK(bitwise_left_shift(bytes, 1).to_vector<std::uint8_t>() == std::vector<std::uint8_t>{144, 10});
        CHECK(bitwise_right_shift(bytes, 8).to_vector<std::uint8_t>() == std::vector<std::uint8_t>{0, 0});
        const Tensor flags = x > 0;
        CHECK(bitwise_not(flags).to_vector<bool>() == std::vector<bool>{true, false, false, true});
        CHECK(bitwise_and(flags, x > 100).to_vector<bool>() == std::vector<bool>{false, false, true, false});
        CHECK(bitwise_or(flags, true).dtype() == DType::boolean);
        CHECK(bitwise_xor(flags, 3).to_vector<std::int64_t>() == WholeNumbers{3, 2, 2, 3});
        CHECK(bitwise_and(flags, bytes.slice(0, 0, 1)).dtype() == DType::u8);
        CHECK(bitwise_and(x.slice(0, 0, 0), 1).shape() == Shape{0});
    }
    using test::message_of;
    const Tensor floats = Tensor::zeros({2}), flags = floats > 0;
    CHECK(message_of<InvalidArgument>([&] { (void)bitwise_and(floats, flags); }) ==
          "bitwise_and: a tensor has dtype f32; expected integers or bool");
    CHECK(message_of<InvalidArgument>([&] { (void)bitwise_or(flags, 0.5); }) ==
          "bitwise_or: the number 0.5 is not an integer; expected one");
    CHECK(message_of<InvalidArgument>([&] { (void)bitwise_left_shift(flags, flags); }) ==
          "bitwise_left_shift: both tensors have dtype bool; expected numbers");
    CHECK_THROWS_AS(bitwise_not(floats), InvalidArgument);
}

TEST_CASE("index_put checks every index, and puts special values") {
    for (const Device device : {Device::host(), Device::cpu(0)}) {
        const Tensor x = Tensor::zeros({2, 3}, DType::f32, device);
        const Tensor rows = whole_list(WholeNumbers{0, 1, 1}, device),
                     columns = whole_list(WholeNumbers{2, 0, 0}, device);
        check_list(index_put(x, {rows, columns}, list_of({undefined, infinite, -0.0f}, device)).flatten(),
                   {0, 0, undefined, -0.0f, 0, 0});
        check_list(index_put(x, {rows, columns}, list_of({1, infinite, -infinite}, device), true).flatten(),
                   {0, 0, 1, undefined, 0, 0});
        check_list(index_put(x, {Tensor::full({}, 1, DType::i64, device)}, list_of({7}, device)).flatten(),
                   {0, 0, 0, 7, 7, 7});
        check_list(index_put(x, {rows.slice(0, 0, 0)}, list_of({7}, device)).flatten(), {0, 0, 0, 0, 0, 0});
        const Tensor flags = index_put(x > 0, {rows, columns}, Tensor::ones({3}, DType::boolean, device));
        CHECK(flags.to_vector<bool>() == std::vector<bool>{false, false, true, true, false, false});
        // (0, 4) would be an element of row 1.
        const std::string message = test::message_of<InvalidArgument>([&] {
            (void)index_put(x, {rows.slice(0, 0, 1), whole_list(WholeNumbers{4}, device)}, list_of({7}, device))
                .to_vector<float>();
        });
        CHECK(test::contains(message, "index_put"));
        CHECK(test::contains(message, "4"));
    }
    using test::message_of;
    const Tensor x = Tensor::zeros({2, 3}), one = Tensor::zeros({1}, DType::i64);
    CHECK(message_of<InvalidArgument>([&] {
              (void)index_put(x, {one, one, one}, Tensor::zeros({1}));
          }) == "index_put: 3 indices for the tensor (2, 3); expected one to 2");
    CHECK(test::contains(message_of<InvalidArgument>([&] { (void)index_put(x, {x > 0}, Tensor::zeros({1})); }),
                         "index_put: index (2, 3) has dtype bool; expected i64"));
    CHECK(test::contains(message_of<InvalidArgument>([&] { (void)index_put(x, {one}, Tensor::zeros({2})); }),
                         "index_put: shapes (1, 3) and (2,) do not broadcast"));
    CHECK(message_of<InvalidArgument>([&] {
              (void)index_put(x, {one}, Tensor::zeros({2, 3}));
          }) ==
          "index_put: values (2, 3) cannot be broadcast to (1, 3), the shape of the indices with the other dimensions "
          "of the tensor (2, 3)");
    CHECK_THROWS_AS(index_put(x, {one}, Tensor::zeros({1}, DType::f64)), InvalidArgument);
}

TEST_CASE("nanquantile of lines without numbers, of infinities and of one element") {
    for (const Device device : {Device::host(), Device::cpu(0)}) {
        const Tensor x = list_of({undefined, undefined, infinite, infinite, undefined, 3, -infinite, 1}, device);
        check_list(nanquantile(x.reshape({4, 2}), 0.5, 1), {undefined, undefined, 3, -infinite});
        check_list(nanquantile(list_of({5}, device), 0.3, 0, true), {5});
    }
    CHECK(test::message_of<InvalidArgument>([] { (void)nanquantile(Tensor::zeros({3}), 1.5, 0); }) ==
          "nanquantile: invalid q (1.5); expected [0, 1]");
    CHECK(test::message_of<InvalidArgument>([] { (void)nanquantile(Tensor::zeros({3}), std::vector<double>{}, 0); }) ==
          "nanquantile: an empty list of quantiles; expected at least one");
}
