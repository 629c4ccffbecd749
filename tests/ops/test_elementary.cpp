// Elementary functions on vector registers, and softmax, which is made of them: accuracy, special values, and the same
// bits wherever an element is.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/angles.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"

using namespace lockstep;

namespace {

struct Function {
    const char* name;
    Tensor (*function)(const Tensor&);
    long double (*exact)(long double);
    double low, high;
};

const std::vector<Function>& functions() {
    static const std::vector<Function> all = {
        {"exp", exp, [](long double x) { return std::exp(x); }, -80, 80},
        {"log", log, [](long double x) { return std::log(x); }, 1e-20, 1e6},
        {"tanh", tanh, [](long double x) { return std::tanh(x); }, -12, 12},
        {"erf", erf, [](long double x) { return std::erf(x); }, -6, 6},
        {"expm1", expm1, [](long double x) { return std::expm1(x); }, -20, 80},
        {"log1p", log1p, [](long double x) { return std::log1p(x); }, -0.999, 1e6},
        {"sin", sin, [](long double x) { return std::sin(x); }, -1000, 1000},
        {"cos", cos, [](long double x) { return std::cos(x); }, -1000, 1000},
        {"log2", log2, [](long double x) { return std::log2(x); }, 1e-20, 1e6},
        {"log10", log10, [](long double x) { return std::log10(x); }, 1e-20, 1e6},
        {"exp2", exp2, [](long double x) { return std::exp2(x); }, -110, 110},
        {"tan", tan, [](long double x) { return std::tan(x); }, -1000, 1000},
        {"atan", atan, [](long double x) { return std::atan(x); }, -100, 100},
        {"sinh", sinh, [](long double x) { return std::sinh(x); }, -80, 80},
        {"cosh", cosh, [](long double x) { return std::cosh(x); }, -80, 80},
        {"asinh", asinh, [](long double x) { return std::asinh(x); }, -1e6, 1e6},
        {"sigmoid", sigmoid, [](long double x) { return 1 / (1 + std::exp(-x)); }, -40, 40},
        {"silu", silu, [](long double x) { return x / (1 + std::exp(-x)); }, -40, 40},
        {"logsigmoid", logsigmoid, [](long double x) { return -std::log1p(std::exp(-x)); }, -40, 40},
        {"gelu", [](const Tensor& x) { return gelu(x); },
         [](long double x) { return x * 0.5L * std::erfc(-x / std::sqrt(2.0L)); }, -0.5, 40},
        {"pow", [](const Tensor& x) { return pow(x, 1.7); },
         [](long double x) { return std::pow(x, static_cast<long double>(1.7)); }, 1e-3, 1e3},
    };
    return all;
}

/// Those that are NaN outside of an interval.
const std::vector<Function>& functions_of_intervals() {
    static const std::vector<Function> all = {
        {"asin", asin, [](long double x) { return std::asin(x); }, -1, 1},
        {"acos", acos, [](long double x) { return std::acos(x); }, -1, 1},
        {"atanh", atanh, [](long double x) { return std::atanh(x); }, -0.999, 0.999},
        {"acosh", acosh, [](long double x) { return std::acosh(x); }, 1, 1e6},
    };
    return all;
}

/// Numbers from `low` to `high`, every third one of smaller magnitude.
template <class T>
std::vector<T> spread(const Function& f, int count) {
    std::vector<T> x;
    for (int i = 0; i < count; ++i) {
        auto value = static_cast<T>(f.low + (f.high - f.low) * i / (count - 1));
        if (i % 3 == 0) value = std::ldexp(value, -(i % 24));
        x.push_back(f.low > 0 ? std::max(value, static_cast<T>(f.low)) : value);
    }
    return x;
}

template <class T>
void check_accuracy(const std::vector<Function>& all, double ulps) {
    constexpr int count = 40000;
    for (const Function& f : all) {
        const std::vector<T> x = spread<T>(f, count);
        const std::vector<T> y = f.function(Tensor::from(x, {count})).template to_vector<T>();
        double worst = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
            // The exponent of pow is also rounded to T.
            const long double exact = f.name == std::string("pow")
                                          ? std::pow(static_cast<long double>(x[i]), static_cast<long double>(T(1.7)))
                                          : f.exact(x[i]);
            const auto size = static_cast<T>(std::abs(exact));
            const double unit = std::nextafter(size, std::numeric_limits<T>::infinity()) - size;
            worst = std::max(worst, std::abs(static_cast<double>(y[i] - exact)) / unit);
        }
        INFO(f.name << ": " << worst << " units in the last place");
        CHECK(worst < ulps);
    }
}

/// With numbers of all magnitudes from 2^low to 2^high.
template <class T>
void check_angles(int low, int high) {
    namespace own = angles::detail;
    for (int i = 0; i < 30000; ++i) {
        const int exponent = low + i % (high - low);
        const T fraction =
            T(1) + static_cast<T>((static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15u) >> 11) / T(0x1p53);
        const T x = std::ldexp(i % 2 == 0 ? fraction : -fraction, exponent);
        const auto exact = static_cast<long double>(x);
        const auto check = [&](const char* name, T found, long double expected) {
            const auto size = static_cast<T>(std::abs(expected));
            const double unit = std::nextafter(size, std::numeric_limits<T>::infinity()) - size;
            const double units = std::abs(static_cast<double>(found - expected)) / unit;
            if (!(units < 4)) FAIL_CHECK(name << " of " << x << ": " << units << " units in the last place");
        };
        check("sin", own::sin(x), std::sin(exact));
        check("cos", own::cos(x), std::cos(exact));
        check("tan", own::tan(x), std::tan(exact));
    }
}

}  // namespace

TEST_CASE("elementary functions are accurate to a few units in the last place") {
    for (const auto& all : {functions(), functions_of_intervals()}) {
        check_accuracy<float>(all, 4);
        if (sizeof(long double) > sizeof(double)) check_accuracy<double>(all, 4);
    }
}

TEST_CASE("sine, cosine and tangent of devices are accurate at all magnitudes") {
    check_angles<float>(-120, 127);
    if (sizeof(long double) > sizeof(double)) check_angles<double>(-1000, 1023);
    for (const float x : {0.0f, -0.0f}) {
        CHECK(std::signbit(angles::detail::sin(x)) == std::signbit(x));
        CHECK(std::signbit(angles::detail::tan(x)) == std::signbit(x));
        CHECK(angles::detail::cos(x) == 1);
    }
    for (const double x : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
        CHECK(std::isnan(angles::detail::sin(x)));
        CHECK(std::isnan(angles::detail::cos(static_cast<float>(x))));
        CHECK(std::isnan(angles::detail::tan(x)));
    }
}

TEST_CASE("elementary functions: infinities, NaN, zeros and subnormal numbers") {
    const float inf = INFINITY, nan = NAN, tiny = 1e-40f;
    const auto check = [](const char* name, Tensor (*function)(const Tensor&), const std::vector<float>& x,
                          const std::vector<float>& expected) {
        INFO(name);
        // In every lane of a register.
        for (std::int64_t before = 0; before < 20; ++before) {
            std::vector<float> all(static_cast<std::size_t>(before), 0.5f);
            all.insert(all.end(), x.begin(), x.end());
            const std::vector<float> y = function(Tensor::from(all, {std::ssize(all)})).to_vector<float>();
            for (std::size_t i = 0; i < x.size(); ++i) {
                const float found = y[static_cast<std::size_t>(before) + i];
                INFO("of " << x[i] << ": " << found);
                if (std::isnan(expected[i]))
                    CHECK(std::isnan(found));
                else
                    CHECK((found == expected[i] && std::signbit(found) == std::signbit(expected[i])));
            }
        }
    };
    check("exp", exp, {inf, -inf, nan, 0, -0.0f, 200, -200, tiny}, {inf, 0, nan, 1, 1, inf, 0, 1});
    check("log", log, {inf, -inf, nan, 0, -0.0f, -1, 1}, {inf, nan, nan, -inf, -inf, nan, 0});
    check("tanh", tanh, {inf, -inf, nan, 0, -0.0f, 50, -50, tiny}, {1, -1, nan, 0, -0.0f, 1, -1, tiny});
    check("erf", erf, {inf, -inf, nan, 0, -0.0f, 50, -50}, {1, -1, nan, 0, -0.0f, 1, -1});
    check("expm1", expm1, {inf, -inf, nan, 0, -0.0f, 200, tiny}, {inf, -1, nan, 0, -0.0f, inf, tiny});
    check("log1p", log1p, {inf, -1, -2, nan, 0, -0.0f, tiny}, {inf, -inf, nan, nan, 0, -0.0f, tiny});
    check("sin", sin, {inf, -inf, nan, 0, -0.0f, tiny}, {nan, nan, nan, 0, -0.0f, tiny});
    check("cos", cos, {inf, -inf, nan, 0, -0.0f}, {nan, nan, nan, 1, 1});
    check("log2", log2, {inf, 0, -1, nan, 8, 0.25f}, {inf, -inf, nan, nan, 3, -2});
    check("log10", log10, {inf, 0, -1, nan, 1000, 1}, {inf, -inf, nan, nan, 3, 0});
    check("exp2", exp2, {inf, -inf, nan, 0, 10, 200}, {inf, 0, nan, 1, 1024, inf});
    check("tan", tan, {inf, nan, 0, -0.0f}, {nan, nan, 0, -0.0f});
    check("asin", asin, {2, -2, nan, 0, -0.0f}, {nan, nan, nan, 0, -0.0f});
    check("acos", acos, {2, 1, nan}, {nan, 0, nan});
    check("atan", atan, {inf, -inf, nan, -0.0f}, {1.57079637f, -1.57079637f, nan, -0.0f});
    check("sinh", sinh, {inf, -inf, nan, 200, -0.0f}, {inf, -inf, nan, inf, -0.0f});
    check("cosh", cosh, {inf, -inf, nan, 200, 0}, {inf, inf, nan, inf, 1});
    check("asinh", asinh, {inf, -inf, nan, -0.0f}, {inf, -inf, nan, -0.0f});
    check("acosh", acosh, {inf, 1, 0.5f, -inf, nan}, {inf, 0, nan, nan, nan});
    check("atanh", atanh, {1, -1, 2, nan, -0.0f}, {inf, -inf, nan, nan, -0.0f});
    check("sigmoid", sigmoid, {inf, -inf, nan, 0}, {1, 0, nan, 0.5f});
    check("logsigmoid", logsigmoid, {inf, -inf, nan, 200}, {0, -inf, nan, 0});
    check("pow", [](const Tensor& x) { return pow(x, 3); }, {inf, -inf, nan, 0, -0.0f, -2},
          {inf, -inf, nan, 0, -0.0f, -8});
}

TEST_CASE("elementary functions: the bits of an element do not depend on its place") {
    manual_seed(91);
    const Tensor x = Tensor::rand({300}) * 6 + 0.01, dy = Tensor::randn({300});
    const auto gradient = [](const Function& f, const Tensor& at, const Tensor& upstream) {
        const Tensor leaf = at.detach().clone().requires_grad_();
        f.function(leaf).backward(upstream.contiguous());
        return leaf.grad().to_vector<float>();
    };
    for (const Function& f : functions()) {
        INFO(f.name);
        const std::vector<float> whole = f.function(x).to_vector<float>(), slopes = gradient(f, x, dy);
        for (std::int64_t length : {1, 2, 7, 8, 9, 16, 17, 31, 40})
            for (std::int64_t begin = 0; begin < 50; begin += 7) {
                const auto part = [&](const std::vector<float>& all) {
                    return std::vector<float>(all.begin() + begin, all.begin() + begin + length);
                };
                const Tensor piece = x.slice(0, begin, begin + length);
                REQUIRE(f.function(piece).to_vector<float>() == part(whole));
                REQUIRE(gradient(f, piece, dy.slice(0, begin, begin + length)) == part(slopes));
            }
    }
}

namespace {

/// Softmax of x (outer, size, inner) in doubles, and its gradient for dy.
struct Exact {
    std::vector<double> y, logarithm, dx, dx_of_logarithm;
};

Exact exact_softmax(const std::vector<float>& x, const std::vector<float>& dy, std::size_t size, std::size_t inner) {
    Exact made;
    for (auto* all : {&made.y, &made.logarithm, &made.dx, &made.dx_of_logarithm}) all->resize(x.size());
    for (std::size_t line = 0; line < x.size() / size; ++line) {
        const auto at = [&](std::size_t k) { return (line / inner * size + k) * inner + line % inner; };
        double largest = -INFINITY, sum = 0, product = 0, total = 0;
        for (std::size_t k = 0; k < size; ++k) largest = std::max(largest, static_cast<double>(x[at(k)]));
        for (std::size_t k = 0; k < size; ++k) sum += std::exp(static_cast<double>(x[at(k)]) - largest);
        for (std::size_t k = 0; k < size; ++k) {
            made.logarithm[at(k)] = static_cast<double>(x[at(k)]) - largest - std::log(sum);
            made.y[at(k)] = std::exp(made.logarithm[at(k)]);
            product += static_cast<double>(dy[at(k)]) * made.y[at(k)];
            total += static_cast<double>(dy[at(k)]);
        }
        for (std::size_t k = 0; k < size; ++k) {
            made.dx[at(k)] = made.y[at(k)] * (static_cast<double>(dy[at(k)]) - product);
            made.dx_of_logarithm[at(k)] = static_cast<double>(dy[at(k)]) - made.y[at(k)] * total;
        }
    }
    return made;
}

double distance(const Tensor& found, const std::vector<double>& exact) {
    const std::vector<float> values = found.to_vector<float>();
    double worst = 0;
    for (std::size_t i = 0; i < exact.size(); ++i)
        worst =
            std::max(worst, std::abs(static_cast<double>(values[i]) - exact[i]) / std::max(1.0, std::abs(exact[i])));
    return worst;
}

}  // namespace

TEST_CASE("softmax over long and short dimensions, first, middle and last") {
    manual_seed(92);
    for (const Shape& shape : {Shape{3, 1300, 1}, Shape{2, 3, 1100}, Shape{1, 600, 5}, Shape{4, 1, 7}, Shape{70, 10, 1},
                               Shape{5, 33, 600}}) {
        INFO(shape.str());
        const Tensor x = Tensor::randn(shape) * 4, dy = Tensor::randn(shape);
        const Exact exact = exact_softmax(x.to_vector<float>(), dy.to_vector<float>(),
                                          static_cast<std::size_t>(shape[1]), static_cast<std::size_t>(shape[2]));
        const Tensor leaf = x.clone().requires_grad_(), second = x.clone().requires_grad_();
        const Tensor y = softmax(leaf, 1), logarithm = log_softmax(second, 1);
        y.backward(dy);
        logarithm.backward(dy);
        CHECK(distance(y, exact.y) < 1e-6);
        CHECK(distance(logarithm, exact.logarithm) < 1e-6);
        CHECK(distance(leaf.grad(), exact.dx) < 1e-6);
        CHECK(distance(second.grad(), exact.dx_of_logarithm) < 2e-5);
        // Rows by themselves.
        const std::int64_t last = shape[0] - 1;
        CHECK(softmax(x.slice(0, last, last + 1), 1).to_vector<float>() ==
              y.slice(0, last, last + 1).to_vector<float>());
    }
}

TEST_CASE("softmax: masked elements, infinities and NaN") {
    const float inf = INFINITY;
    for (const bool rows : {true, false}) {
        // Lines: some masked, all masked, with +infinity, with NaN.
        Tensor x = Tensor::from(std::vector<float>{1, -inf, 1, -inf, -inf, -inf, inf, 0, 0, NAN, 0, 0}, {4, 3});
        if (!rows) x = x.transpose(0, 1).contiguous();
        const Tensor y = softmax(x, rows ? 1 : 0), logarithm = log_softmax(x, rows ? 1 : 0);
        const auto line = [&](const Tensor& all, std::int64_t i) {
            return all.select(rows ? 0 : 1, i).to_vector<float>();
        };
        CHECK(line(y, 0) == std::vector<float>{0.5, 0, 0.5});
        CHECK(line(logarithm, 0)[1] == -inf);
        CHECK(std::isnan(line(y, 2)[0]));
        for (const float value : line(y, 1)) CHECK(std::isnan(value));
        for (const float value : line(y, 3)) CHECK(std::isnan(value));
    }
}
