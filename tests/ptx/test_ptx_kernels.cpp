// Small kernels as nvcc compiles them (kernels.cu), in every schedule, compared with loops on the host.
#include <cmath>
#include <random>

#include "lockstep/tests/ptx/fixture.h"

using namespace lockstep::ptx;

namespace {

const std::string& text() {
    static const std::string compiled = compiled_text(PTX_FILES, "kernels");
    return compiled;
}

template <class T>
std::vector<T> random_values(std::size_t count, double low, double high) {
    std::mt19937 random(7);
    std::uniform_real_distribution<double> values(low, high);
    std::vector<T> result(count);
    for (T& each : result) each = static_cast<T>(values(random));
    return result;
}

const Schedule& each_schedule() {
    const Schedule& schedule = schedules[static_cast<std::size_t>(GENERATE(0, 1, 2, 3))];
    UNSCOPED_INFO(schedule.name);
    return schedule;
}

struct Affine {
    double factor;
    float offset;
    short power;
};

}  // namespace

TEST_CASE("a grid-stride loop") {
    const Schedule& schedule = each_schedule();
    const int n = GENERATE(0, 1, 33, 1000);
    Program program(text());
    const auto x = random_values<float>(1000, -5, 5), y = random_values<float>(1000, -3, 9);
    const float a = 1.7f;
    const float* const from = program.copy(x);
    float* const to = program.copy(y);
    program.run_right("grid_stride", sized(3, 96, schedule), a, from, to, n);
    for (std::size_t i = 0; i < x.size(); ++i)
        CHECK(to[i] == (i < static_cast<std::size_t>(n) ? std::fma(a, x[i], y[i]) : y[i]));
}

TEST_CASE("sums of blocks by shuffles and shared memory") {
    const Schedule& schedule = each_schedule();
    const int n = GENERATE(1, 31, 256, 1001);
    Program program(text());
    const auto x = random_values<float>(static_cast<std::size_t>(3 * n), -1, 1);
    double* const sums = program.array<double>(3, Fill::unset);
    program.run_right("block_sums", sized(3, 256, schedule), program.copy(x), sums, n);
    for (std::size_t b = 0; b < 3; ++b) {
        double expected = 0;
        for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i)
            expected += static_cast<double>(x[b * static_cast<std::size_t>(n) + i]);
        CHECK(std::fabs(sums[b] - expected) < 1e-12 * n);
    }
}

TEST_CASE("atomic additions to shared and global memory") {
    const Schedule& schedule = each_schedule();
    Program program(text());
    std::vector<int> x(1000);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<int>(i * i % 23);
    unsigned* const counts = program.array<unsigned>(16);
    auto* const total = program.array<unsigned long long>(1);
    program.run_right("histogram", sized(8, 128, schedule), program.copy(x), counts, total, 1000);
    std::vector<unsigned> expected(16);
    unsigned long long sum = 0;
    for (const int each : x) {
        ++expected[static_cast<std::size_t>(each & 15)];
        sum += static_cast<unsigned long long>(each);
    }
    CHECK(std::vector<unsigned>(counts, counts + 16) == expected);
    CHECK(*total == sum);
}

TEST_CASE("a transpose through a tile in shared memory") {
    const Schedule& schedule = each_schedule();
    Program program(text());
    const int rows = 45, columns = 70;
    const auto x = random_values<float>(45 * 70, -1, 1);
    float* const y = program.array<float>(x.size(), Fill::unset);
    LaunchOptions options = sized(0, 0, schedule);
    options.grid = {3, 2, 1};
    options.block = {32, 8, 1};
    program.run_right("transpose", options, program.copy(x), y, rows, columns);
    for (int r = 0; r < rows; ++r)
        for (int c = 0; c < columns; ++c) CHECK(y[c * rows + r] == x[static_cast<std::size_t>(r * columns + c)]);
}

TEST_CASE("lanes that diverge in loops and branches") {
    const Schedule& schedule = each_schedule();
    Program program(text());
    std::vector<unsigned> x(100);
    for (unsigned i = 0; i < 100; ++i) x[i] = i + 1;
    unsigned* const steps = program.array<unsigned>(100, Fill::unset);
    const Counters counters = program.run_right("collatz", sized(4, 32, schedule), program.copy(x), steps, 100);
    for (unsigned i = 0; i < 100; ++i) {
        unsigned count = 0;
        for (unsigned value = x[i]; value != 1; ++count) value = value % 2 == 0 ? value / 2 : 3 * value + 1;
        CHECK(steps[i] == count);
    }
    if (schedule.lanes == Schedule::Lanes::together) CHECK(counters.divergent_branches > 0);
}

TEST_CASE("64-bit integers and bit fields") {
    Program program(text());
    const std::vector<std::int64_t> a{
        1, -1, 7, -7, 1'000'000'007, -123456789012345678, std::numeric_limits<std::int64_t>::max(), 0x123456789abcdef0},
        b{3, 3, -2, 2, -998'244'353, 987654321, std::numeric_limits<std::int64_t>::min(), -5};
    auto* const out = program.array<std::int64_t>(a.size() * 12, Fill::unset);
    program.run_right("integers", sized(1, 8), program.copy(a), program.copy(b), out);
    for (std::size_t i = 0; i < a.size(); ++i) {
        CAPTURE(i);
        const std::int64_t x = a[i], y = b[i];
        const auto ux = static_cast<std::uint64_t>(x), uy = static_cast<std::uint64_t>(y);
        // The upper half of a product from products of 32-bit halves.
        const std::uint64_t x0 = ux & 0xffffffff, x1 = ux >> 32, y0 = uy & 0xffffffff, y1 = uy >> 32;
        const std::uint64_t middle = x1 * y0 + (x0 * y0 >> 32), other = x0 * y1 + (middle & 0xffffffff);
        const std::uint64_t upper = x1 * y1 + (middle >> 32) + (other >> 32);
        const std::int64_t* const got = out + i * 12;
        CHECK(got[0] == x / y);
        CHECK(got[1] == x % y);
        CHECK(got[2] == static_cast<std::int64_t>(upper - (x < 0 ? uy : 0) - (y < 0 ? ux : 0)));
        CHECK(got[3] == static_cast<std::int64_t>(upper));
        CHECK(got[4] == (std::int64_t{static_cast<std::int32_t>(x)} * static_cast<std::int32_t>(y)) >> 32);
        std::int64_t ones = 0, leading = 64, reversed = 0;
        for (int k = 0; k < 64; ++k) {
            const auto bit = static_cast<std::int64_t>(ux >> k & 1);
            ones += bit;
            if (bit != 0) leading = 63 - k;
            reversed |= static_cast<std::int64_t>(static_cast<std::uint64_t>(bit) << (63 - k));
        }
        CHECK(got[5] == ones);
        CHECK(got[6] == leading);
        CHECK(got[7] == reversed);
        const auto low = static_cast<std::uint32_t>(x), high = static_cast<std::uint32_t>(y);
        CHECK(got[8] == static_cast<std::uint32_t>(i == 0 ? high : high << i | low >> (32 - i)));
        const auto byte = [](std::uint32_t word, int k) { return word >> (8 * k) & 255; };
        CHECK(got[9] ==
              static_cast<std::uint32_t>(byte(low, 2) | byte(high, 1) << 8 | byte(low, 1) << 16 | byte(high, 3) << 24));
        CHECK(got[10] == static_cast<std::int16_t>(x) * static_cast<std::int16_t>(y));
        CHECK(got[11] == static_cast<std::int64_t>(static_cast<std::int8_t>(x)) >> (i & 7));
    }
}

TEST_CASE("f32 functions") {
    Program program(text());
    auto x = random_values<float>(200, -8, 8);
    float* const out = program.array<float>(x.size() * 8, Fill::unset);
    program.run_right("functions", sized(7, 32), program.copy(x), out, 200);
    for (std::size_t i = 0; i < x.size(); ++i) {
        CAPTURE(x[i]);
        const auto v = static_cast<double>(x[i]), magnitude = std::fabs(v);
        const double expected[] = {std::exp(v),
                                   std::log(magnitude),
                                   std::sin(static_cast<double>(x[i] * 1e5f)),
                                   std::pow(magnitude, static_cast<double>(0.7f)),
                                   std::tanh(v),
                                   1 / std::sqrt(magnitude),
                                   std::erf(v),
                                   std::exp(v)};
        for (std::size_t k = 0; k < 8; ++k) {
            CAPTURE(k);
            CHECK(std::fabs(static_cast<double>(out[i * 8 + k]) - expected[k]) <=
                  1e-6 * std::max(1.0, std::fabs(expected[k])));
        }
    }
}

TEST_CASE("f64 functions") {
    Program program(text());
    const auto x = random_values<double>(200, -30, 30);
    double* const out = program.array<double>(x.size() * 6, Fill::unset);
    program.run_right("functions_f64", sized(7, 32), program.copy(x), out, 200);
    for (std::size_t i = 0; i < x.size(); ++i) {
        CAPTURE(x[i]);
        const double expected[] = {
            std::exp(x[i]), std::log(std::fabs(x[i])), std::pow(std::fabs(x[i]), 1.25), std::tanh(x[i]),
            x[i] / 3,       std::nearbyint(x[i])};
        for (std::size_t k = 0; k < 6; ++k) {
            CAPTURE(k);
            CHECK(std::fabs(out[i * 6 + k] - expected[k]) <= 1e-15 * std::fabs(expected[k]));
        }
        CHECK(out[i * 6 + 4] == expected[4]);
    }
}

TEST_CASE("functions with structures, local memory and constants") {
    const Schedule& schedule = each_schedule();
    Program program(text());
    const Affine given{1.25, 0.5f, 3};
    const std::vector<int> order{5, 0, 7, 2, 6, 1, 3, 4, 5};
    double* const out = program.array<double>(order.size(), Fill::unset);
    program.run_right("calls_and_local", sized(1, 9, schedule), given, program.copy(order), out);
    const float weights[] = {0.5f, -1.5f, 2.25f, 8.0f};
    std::vector<double> values;
    Affine f = given;
    for (int i = 0; i < 8; ++i) {
        values.push_back(std::fma(f.factor, i, static_cast<double>(f.offset)) + static_cast<double>(weights[i & 3]) +
                         f.power);
        f.offset = std::fma(static_cast<float>(f.factor), f.offset, f.offset);
        f.factor *= f.factor;
        ++f.power;
    }
    for (std::size_t i = 0; i < order.size(); ++i)
        CHECK(out[i] == Approx(values[static_cast<std::size_t>(order[i])]).epsilon(1e-12));
}

TEST_CASE("16-bit CUDA types") {
    Program program(text());
    const auto x = random_values<float>(64, -4, 4), y = random_values<float>(64, -0.01, 3);
    auto* const out = program.array<std::uint16_t>(64 * 8, Fill::unset);
    program.run_right("halves", sized(1, 64), program.copy(x), program.copy(y), out);
    const auto value = [](std::uint16_t bits) {
        const int exponent = bits >> 10 & 31;
        const double magnitude =
            exponent == 0 ? std::ldexp(bits & 1023, -24) : std::ldexp(1024 + (bits & 1023), exponent - 25);
        return (bits & 0x8000) != 0 ? -magnitude : magnitude;
    };
    // Units in the last place of f16 at 1: 2^-10; rounding is off by half of it.
    const auto close = [&](std::uint16_t bits, double expected) {
        return std::fabs(value(bits) - expected) <= std::max(std::ldexp(std::fabs(expected), -11), 0x1p-25);
    };
    for (std::size_t i = 0; i < 64; ++i) {
        CAPTURE(i);
        const std::uint16_t* const got = out + i * 8;
        const double a = value(got[0]);
        CHECK(close(got[0], static_cast<double>(x[i])));
        const double b = (value(got[1]) - a);  // roughly y
        CHECK(std::fabs(b - static_cast<double>(y[i])) < 0.01);
        CHECK(std::fabs(value(got[2]) - a * static_cast<double>(y[i])) < 0.02);
        CHECK(std::fabs(value(got[3]) - (a * static_cast<double>(y[i]) + a)) < 0.02);
        CHECK(got[6] == got[3]);  // the same operation on the lower half
        const float c = x[i];
        std::uint32_t bits = 0;
        std::memcpy(&bits, &c, 4);
        CHECK(got[4] == static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16));
        float fused = 0;
        const std::uint32_t wide = std::uint32_t{got[5]} << 16;
        std::memcpy(&fused, &wide, 4);
        CHECK(std::fabs(static_cast<double>(fused) - static_cast<double>(x[i] * y[i] + y[i])) < 0.1);
    }
}

TEST_CASE("vectors of four, and their sectors") {
    const Schedule& schedule = each_schedule();
    Program program(text());
    const auto x = random_values<float>(400, -1, 1);
    float* const y = program.array<float>(400, Fill::unset);
    const Counters counters = program.run_right("vectors", sized(4, 32, schedule), program.copy(x), y, 100);
    for (std::size_t i = 0; i < 400; ++i) CHECK(y[i] == x[i / 4 * 4 + 3 - i % 4]);
    CHECK(counters.compulsory_sectors == 2 * 50);  // 1600 bytes read, as many written
    if (schedule.lanes == Schedule::Lanes::together) {
        CHECK(counters.requests == 2 * 4);
        CHECK(counters.sectors == 2 * 50);
        CHECK(counters.of(Issue::global) == 2 * 4);
    }
}

TEST_CASE("votes, scans and shuffles of half warps") {
    const Schedule& schedule = each_schedule();
    Program program(text());
    std::vector<int> x(64);
    for (int i = 0; i < 64; ++i) x[static_cast<std::size_t>(i)] = i * 5 % 11 - (i < 32 ? 3 : 0);
    unsigned* const out = program.array<unsigned>(64 * 4, Fill::unset);
    program.run_right("warp_votes", sized(1, 64, schedule), program.copy(x), out);
    for (std::size_t warp = 0; warp < 2; ++warp) {
        std::vector<unsigned> sums(32);
        unsigned ballot = 0, any = 0, all = 1, sum = 0;
        for (std::size_t lane = 0; lane < 32; ++lane) {
            const int value = x[warp * 32 + lane];
            sums[lane] = sum += static_cast<unsigned>(value);
            if (value > 0) ballot |= 1u << lane;
            if (value == 7) any = 1;
            if (value < 0) all = 0;
        }
        for (std::size_t lane = 0; lane < 32; ++lane) {
            CAPTURE(warp, lane);
            const unsigned* const got = out + (warp * 32 + lane) * 4;
            CHECK(got[0] == sums[lane]);
            CHECK(got[1] == ballot);
            CHECK(got[2] == any * 2 + all);
            CHECK(got[3] == sums[lane] + (lane < 16 ? sums[lane ^ 3] : sums[16 + 5]));
        }
    }
}

TEST_CASE("shared memory sized at launch, and a warp barrier") {
    const Schedule& schedule = each_schedule();
    Program program(text());
    std::vector<int> x(64);
    for (int i = 0; i < 64; ++i) x[static_cast<std::size_t>(i)] = i * 3;
    int* const y = program.array<int>(64, Fill::unset);
    LaunchOptions options = sized(1, 64, schedule);
    options.dynamic_shared = 64 * sizeof(int);
    program.run_right("dynamic_shared", options, program.copy(x), y);
    for (int i = 0; i < 64; ++i) CHECK(y[i] == (63 - i) * 3);
    program.run_right("warp_barrier", sized(1, 64, schedule), program.copy(x), y);
    for (int i = 0; i < 64; ++i) CHECK(y[i] == (i ^ 9) * 3);
}
