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
