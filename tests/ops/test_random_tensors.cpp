// Random tensors: distributions, the counters by which elements are drawn, dtypes, gradients and errors. Random
// categories, integers and permutations.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/random_arithmetic.h"
#include "lockstep/runtime/autocast.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"
#include "lockstep/runtime/record.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

using Values = std::vector<double>;

Values values_of(const Tensor& x) { return x.to(Device::host()).to(DType::f64).to_vector<double>(); }

constexpr DType floats[] = {DType::f32, DType::f64, DType::f16, DType::bf16};

/// Probability of a standard normal number above z.
double above(double z) { return std::erfc(z / std::sqrt(2.0)) / 2; }

/// z >= 0 with above(z) == u.
double quantile(double u) {
    double low = 0, high = 12;
    for (int i = 0; i < 80; ++i) {
        const double middle = (low + high) / 2;
        (above(middle) > u ? low : high) = middle;
    }
    return (low + high) / 2;
}

/// The numbers of the first random call after manual_seed(seed).
std::uint32_t word(std::uint64_t seed, std::uint64_t index, std::uint32_t call = 0) {
    StepCounters state;
    state.seed = seed;
    return random_bits(state, call, index);
}

Tensor zeros(std::int64_t count, DType dtype = DType::f32) { return Tensor::zeros({count}, dtype); }

/// Largest distance of the values' distribution from that of standard normal numbers (Kolmogorov, Smirnov).
double distance_from_normal(Values values) {
    std::sort(values.begin(), values.end());
    const auto count = static_cast<double>(values.size());
    double distance = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
        const double below = 1 - above(values[i]), place = static_cast<double>(i);
        distance = std::max({distance, below - place / count, (place + 1) / count - below});
    }
    return distance;
}

double correlation(const Values& a, const Values& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum / static_cast<double>(a.size());
}

}  // namespace

TEST_CASE("uniform numbers are those of their counters, with the bits of each dtype") {
    constexpr std::int64_t count = 5003;
    for (const DType dtype : floats) {
        CAPTURE(name_of(dtype));
        manual_seed(7);
        const Tensor x = rand_like(zeros(count, dtype));
        CHECK(x.dtype() == dtype);
        const Values found = values_of(x);
        for (std::uint64_t e = 0; e < count; ++e) {
            double expected = 0;
            if (dtype == DType::f64)
                expected = std::ldexp(static_cast<double>(static_cast<std::uint64_t>(word(7, 2 * e) >> 5) << 26 |
                                                          word(7, 2 * e + 1) >> 6),
                                      -53);
            else {
                const int digits = dtype == DType::f32 ? 24 : dtype == DType::f16 ? 11 : 8;
                expected = std::ldexp(static_cast<double>(word(7, e) >> (32 - digits)), -digits);
            }
            REQUIRE(found[e] == expected);
        }
    }
}

TEST_CASE("normal numbers are the quantiles of their counters' bits") {
    constexpr std::int64_t count = 5003;
    manual_seed(8);
    const Values single = values_of(randn_like(zeros(count)));
    manual_seed(8);
    const Values wide = values_of(randn_like(zeros(count, DType::f64)));
    for (std::uint64_t e = 0; e < count; ++e) {
        const std::uint32_t bits = word(8, e);
        const double z = quantile((static_cast<double>(bits >> 1) + 0.5) / 0x1p32);
        REQUIRE(std::abs(single[e] - ((bits & 1) != 0 ? -z : z)) <= 5e-7 * z);
        const std::uint32_t first = word(8, 2 * e), second = word(8, 2 * e + 1);
        const double u = (static_cast<double>(first >> 1) + (static_cast<double>(second >> 1) + 0.5) / 0x1p31) / 0x1p32;
        const double exact = quantile(u);
        REQUIRE(std::abs(wide[e] - ((first & 1) != 0 ? -exact : exact)) <= 1e-13);
    }
    for (const DType dtype : {DType::f16, DType::bf16}) {
        manual_seed(8);
        CHECK(values_of(randn_like(zeros(count, dtype))) ==
              values_of(Tensor::from(single, {count}).to(DType::f32).to(dtype)));
    }
}

TEST_CASE("normal numbers have the frequencies of every range, and the largest are beyond six deviations") {
    // Numbers decrease with the bits above the sign, so the first ones below z tell how many are above.
    for (const double z : {0.1, 0.5, 1.0, 1.4, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0}) {
        CAPTURE(z);
        std::int64_t low = 0, high = std::int64_t{1} << 31;
        while (low < high) {
            const std::int64_t middle = (low + high) / 2;
            if (element::normal(static_cast<std::uint32_t>(2 * middle)) > static_cast<float>(z))
                low = middle + 1;
            else
                high = middle;
        }
        const double expected = above(z) * 0x1p32;
        CHECK(std::abs(static_cast<double>(low) - expected) <= 1 + 4e-6 * expected);
    }
    CHECK(element::normal(0) > 6.2F);
    CHECK(element::normal(1) == -element::normal(0));
    CHECK(std::abs(element::normal(0xfffffffe)) < 1e-9F);
    CHECK(element::normal(0u, 0u) == Approx(quantile(0x1p-64)).epsilon(1e-12));
    for (const std::uint32_t bits : {2u, 20u, 2000u, 200000u, 20000000u, 600000000u, 645000000u, 2000000000u}) {
        CAPTURE(bits);
        const double u = (static_cast<double>(bits >> 1) + 0.5 / 0x1p31) / 0x1p32;
        CHECK(element::normal(bits, 0u) == Approx(quantile(u)).epsilon(1e-12));
    }
    // The two formulas meet where u is 0.075.
    const auto border = static_cast<std::uint32_t>(0.075 * 0x1p32);
    float before = element::normal(2 * (border - 200));
    for (std::uint32_t n = border - 199; n < border + 200; ++n) {
        const float next = element::normal(2 * n);
        REQUIRE(next <= before + 3e-7F);
        before = next;
    }
}

TEST_CASE("moments, distances and correlations of a million numbers") {
    constexpr std::int64_t rows = 1000, columns = 1000, count = rows * columns;
    const auto within = [](double value, double variance) {
        return std::abs(value) < 4.5 * std::sqrt(variance / count);
    };
    manual_seed(11);
    const Tensor like = Tensor::zeros({rows, columns});
    const Values normals = values_of(randn_like(like)), again = values_of(randn_like(like));
    const Values wide = values_of(randn_like(like.to(DType::f64)));
    for (const Values* numbers : {&normals, &again, &wide}) {
        double moments[5] = {}, beyond_4 = 0;
        for (const double z : *numbers) {
            double power = 1;
            for (double& moment : moments) moment += power / count, power *= z;
            beyond_4 += std::abs(z) > 4 ? 1 : 0;
        }
        CHECK(within(moments[1], 1));
        CHECK(within(moments[2] - 1, 2));
        CHECK(within(moments[3], 15));
        CHECK(within(moments[4] - 3, 96));
        CHECK(std::abs(beyond_4 - 2 * above(4) * count) < 40);            // 63 are expected
        CHECK(distance_from_normal(*numbers) < 1.95 / std::sqrt(count));  // more once in 1,000 seeds
        // Successive elements, elements of a block of the generator, rows.
        for (const std::size_t step : {1u, 2u, 3u, 4u, 64u, 1000u}) {
            CAPTURE(step);
            CHECK(within(correlation({numbers->begin(), numbers->end() - static_cast<std::ptrdiff_t>(step)},
                                     {numbers->begin() + static_cast<std::ptrdiff_t>(step), numbers->end()}),
                         1));
        }
    }
    CHECK(within(correlation(normals, again), 1));

    const Values uniform = values_of(rand_like(like));
    double mean = 0, square = 0, neighbours = 0;
    for (std::size_t i = 0; i < count; ++i) {
        mean += (uniform[i] - 0.5) / count;
        square += (uniform[i] - 0.5) * (uniform[i] - 0.5) / count;
        neighbours += i > 0 ? (uniform[i] - 0.5) * (uniform[i - 1] - 0.5) / count : 0;
    }
    CHECK(within(mean, 1.0 / 12));
    CHECK(within(square - 1.0 / 12, 1.0 / 180));
    CHECK(within(neighbours, 1.0 / 144));
    for (const double p : {0.001, 0.3, 0.999}) {
        double ones = 0, of_tensor = 0;
        for (const double value : values_of(bernoulli(like, p))) ones += value / count;
        for (const double value : values_of(bernoulli(full_like(like, p)))) of_tensor += value / count;
        CHECK(within(ones - p, p * (1 - p)));
        CHECK(within(of_tensor - p, p * (1 - p)));
    }
    const Values scaled = values_of(normal(full_like(like, 3), 0.5));
    double shifted = 0;
    for (const double value : scaled) shifted += (value - 3) / count;
    CHECK(within(shifted, 0.25));
    manual_seed(0);
}

TEST_CASE("the loops of every instruction set have the bits of single elements", "[loops]") {
    manual_seed(13);
    const std::vector<float> single = randn_like(zeros(70001)).to_vector<float>();
    const std::vector<double> wide = randn_like(zeros(70001, DType::f64)).to_vector<double>();
    for (std::uint64_t e = 0; e < single.size(); ++e) {
        REQUIRE(single[e] == element::normal(word(13, e)));
        REQUIRE(wide[e] == element::normal(word(13, 2 * e, 1), word(13, 2 * e + 1, 1)));
    }
    manual_seed(0);
}

TEST_CASE("draws are ones with the given probabilities, element by element") {
    const std::vector<float> p = {0, 1, 0.5F, 0.25F, 1e-3F, 1 - 1e-3F, 0.75F};
    std::vector<float> many;
    for (std::size_t i = 0; i < 3000; ++i) many.push_back(p[i % p.size()]);
    const Tensor all = Tensor::from(many, {3000});
    manual_seed(17);
    const Values found = values_of(bernoulli(all));
    for (std::uint64_t e = 0; e < found.size(); ++e) REQUIRE(found[e] == (to_uniform(word(17, e)) < many[e] ? 1 : 0));
    for (const DType dtype : floats) {
        manual_seed(17);
        const Tensor x = bernoulli(zeros(3000, dtype), 0.25);
        CHECK(x.dtype() == dtype);
        const Values values = values_of(x);
        for (std::uint64_t e = 0; e < values.size(); ++e)
            REQUIRE(values[e] == (to_uniform(word(17, e)) < 0.25F ? 1 : 0));
        CHECK(values_of(bernoulli(zeros(50, dtype), 0)) == Values(50, 0));
        CHECK(values_of(bernoulli(zeros(50, dtype), 1)) == Values(50, 1));
        CHECK(values_of(bernoulli(Tensor::ones({50}, dtype))) == Values(50, 1));
        CHECK(values_of(bernoulli(zeros(50, dtype))) == Values(50, 0));
    }
}

TEST_CASE("normal scales and shifts the numbers of randn_like") {
    const Tensor mean = Tensor::from(std::vector<float>{1, 2, 3}, {3, 1}),
                 std = Tensor::from(std::vector<float>{0, 1, 2, 4}, {4});
    manual_seed(19);
    const Values z = values_of(randn_like(Tensor::zeros({3, 4})));
    manual_seed(19);
    const Tensor both = normal(mean, std);
    manual_seed(19);
    const Tensor one_std = normal(mean.expand({3, 4}), 0.5);
    manual_seed(19);
    const Tensor one_mean = normal(-7, std.expand({3, 4}));
    manual_seed(19);
    const Tensor standard = normal(Tensor::zeros({3, 4}));
    CHECK(both.shape() == Shape{3, 4});
    CHECK(values_of(standard) == z);
    for (std::size_t i = 0; i < 3; ++i)
        for (std::size_t j = 0; j < 4; ++j) {
            const double deviation = j == 3 ? 4 : static_cast<double>(j), number = z[4 * i + j];
            CHECK(values_of(both)[4 * i + j] == Approx(static_cast<double>(i) + 1 + deviation * number));
            CHECK(values_of(one_std)[4 * i + j] == Approx(static_cast<double>(i) + 1 + 0.5 * number));
            CHECK(values_of(one_mean)[4 * i + j] == Approx(-7 + deviation * number));
        }
    for (const DType dtype : floats) CHECK(normal(mean.to(dtype), std.to(dtype)).dtype() == dtype);
    CHECK(values_of(normal(mean, 0)) == Values{1, 2, 3});
}

TEST_CASE("random tensors have the same bits on every device, with any layout and number of threads") {
    const Tensor x = Tensor::from(Values(20 * 4096, 0.3), {4096, 20}).to(DType::f32);
    const auto drawn = [&](const Tensor& like) {
        manual_seed(23);
        std::vector<Values> all;
        for (const Tensor& y : {randn_like(like), rand_like(like), bernoulli(like), bernoulli(like, 0.2),
                                normal(like, like), normal(like, 2), normal(1, like)}) {
            CHECK(y.shape() == like.shape());
            CHECK(y.device() == like.device());
            CHECK(y.is_batch() == like.is_batch());
            all.push_back(values_of(y));
        }
        return all;
    };
    const std::vector<Values> expected = drawn(x);
    const std::set<Values> different(expected.begin(), expected.end());
    CHECK(different.size() == expected.size());
    CHECK(drawn(x) == expected);
    CHECK(drawn(x.to(Device::cpu(0))) == expected);
    CHECK(drawn(x.tag_batch()) == expected);
    CHECK(drawn(x.transpose(0, 1).contiguous().transpose(0, 1)) == expected);
    for (const int threads : {1, 2, 5}) {
        const ComputeScope scope({.threads = threads});
        CHECK(drawn(x) == expected);
    }
    manual_seed(24);
    CHECK(values_of(randn_like(x)) != expected[0]);
    CHECK(values_of(randn_like(x)) != values_of(randn_like(x)));
    for (const Shape& shape : {Shape{}, Shape{0}, Shape{3, 0}}) {
        const Tensor small = Tensor::full(shape, 0.5);
        CHECK(rand_like(small).shape() == shape);
        CHECK(normal(small, small).shape() == shape);
        CHECK(bernoulli(small).shape() == shape);
    }
    manual_seed(0);
}

TEST_CASE("a sample by mean and deviation has gradients, and a draw has zeros") {
    const Tensor mu = Tensor::from(Values{1, -2, 3}, {3}).requires_grad_();
    const Tensor sigma = Tensor::from(Values{0.5, 1, 2}, {3}).requires_grad_();
    const Tensor noise = randn_like(sigma);
    CHECK_FALSE(noise.requires_grad());
    sum(square(mu + sigma * noise)).backward();
    const Values z = values_of(noise);
    for (std::size_t i = 0; i < 3; ++i) {
        const double sample = values_of(mu)[i] + values_of(sigma)[i] * z[i];
        CHECK(values_of(mu.grad())[i] == Approx(2 * sample));
        CHECK(values_of(sigma.grad())[i] == Approx(2 * sample * z[i]));
    }
    const auto zeros_after = [](const Tensor& argument, const Tensor& y) {
        CHECK(y.requires_grad());
        argument.set_grad(Tensor());
        sum(y).backward();
        CHECK(values_of(argument.grad()) == Values(3, 0));
    };
    zeros_after(mu, normal(mu, sigma));
    zeros_after(sigma, normal(mu, sigma));
    zeros_after(mu, normal(mu, 2));
    zeros_after(sigma, normal(2, sigma));
    const Tensor p = Tensor::from(Values{0.5, 1, 0}, {3}).requires_grad_();
    zeros_after(p, bernoulli(p));
    zeros_after(p, bernoulli(p, 0.5));
    CHECK_FALSE(rand_like(p).requires_grad());
    const Tensor column = Tensor::from(Values{1, 2}, {2, 1}).requires_grad_();
    sum(normal(column, sigma)).backward();
    CHECK(column.grad().shape() == Shape{2, 1});
}

TEST_CASE("invalid parameters of random tensors are errors") {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const Tensor x = Tensor::zeros({3}), whole = Tensor::zeros({3}, DType::i64);
    const auto says = [](const std::string& part, auto call) {
        CHECK_THAT(message_of<InvalidArgument>(call), contains(part));
    };
    for (const double p : {-0.1, 1.1, nan}) says("bernoulli: invalid probability (", [&] { (void)bernoulli(x, p); });
    says("normal: invalid std (-1); expected 0 or more", [&] { (void)normal(x, -1); });
    says("normal: invalid std (nan)", [&] { (void)normal(x, nan); });
    says("rand_like: ", [&] { (void)rand_like(whole); });
    says("randn_like: ", [&] { (void)randn_like(whole); });
    says("bernoulli: ", [&] { (void)bernoulli(whole); });
    says("normal: ", [&] { (void)normal(x, whole); });
    says("normal: ", [&] { (void)normal(x, Tensor::zeros({2})); });
    says("normal: ", [&] { (void)normal(x, x.to(DType::f64)); });

    for (const DType dtype : floats) {
        CAPTURE(name_of(dtype));
        const auto of = [dtype](Values values) {
            const auto rows = static_cast<std::int64_t>(values.size() / 2);
            return Tensor::from(values, {rows, 2}).to(dtype);
        };
        const auto read = [](const Tensor& y) { (void)y.to(DType::f64).to_vector<double>(); };
        says("bernoulli: probability 1.5 in row 1 is out of range; expected [0, 1]", [&] {
            read(bernoulli(of({0, 1, 0.5, 1.5, -1, 0})));
        });
        says("bernoulli: probability -0.25 in row 0", [&] { read(bernoulli(of({-0.25, 1}))); });
        says("bernoulli: probability nan in row 0", [&] { read(bernoulli(of({1, nan}))); });
        says("normal: std -2 in row 2 is out of range; expected 0 or more", [&] {
            read(normal(of({1, 1, 1, 1, 1, 1}), of({1, 1, 1, 1, -2, -3})));
        });
        says("normal: std nan in row 0", [&] { read(normal(3, of({nan, -3}))); });
        read(normal(of({1, 2}), of({0, 3})));
        for (const bool replacement : {false, true}) {
            const auto draw = [&](Values values) {
                (void)multinomial(of(std::move(values)), 1, replacement).to_vector<std::int64_t>();
            };
            says("multinomial: probability -0.25 in row 1 is out of range; expected [0, 1]", [&] {
                draw({0, 1, -1, 5, 0, 1});
            });
            says("nan in row 2 is out of range", [&] { draw({0, 1, 2, 3, 0, 0}); });
            says("nan in row 0 is out of range", [&] { draw({nan, 1}); });
            says("nan in row 0 is out of range", [&] { draw({1, std::numeric_limits<double>::infinity()}); });
            draw({0, 1, 3, 0});
        }
    }
}

TEST_CASE("Autocast leaves random tensors in the dtype of their input") {
    const Autocast scope(DType::bf16);
    for (const DType dtype : floats) {
        const Tensor x = Tensor::full({4}, 0.5, dtype);
        for (const Tensor& y :
             {rand_like(x), randn_like(x), bernoulli(x), bernoulli(x, 0.5), normal(x, x), normal(x, 2), normal(2, x)})
            CHECK(y.dtype() == dtype);
    }
}

TEST_CASE("multinomial draws categories by their weights") {
    manual_seed(3);
    const std::int64_t rows = 4000;
    for (const Device device : {Device::host(), Device::cpu(0)}) {
        const Tensor weights = Tensor::from(std::vector<float>{1, 0, 2, 5}, {4}, device).expand({rows, 4}).clone();
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

TEST_CASE("randint and randperm") {
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
}
