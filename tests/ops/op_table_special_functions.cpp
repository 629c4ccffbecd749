// Special functions, and rounded quotients of floats and of integers, in the op table.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>

#include "lockstep/ops/functional.h"
#include "lockstep/tests/ops/function_op.h"

namespace lockstep::test {

namespace {

// References by definition: finite sums and the first terms of the Euler-Maclaurin formula for the rest, whose error is
// below 1e-13.

constexpr int terms = 2000;

double exact_digamma(double x) {
    double sum = 0;
    for (int k = 0; k < terms; ++k) sum += 1 / (x + k);
    const double rest = x + terms;
    return std::log(rest) - 1 / (2 * rest) - 1 / (12 * rest * rest) - sum;
}

double exact_polygamma(int order, double x) {
    const double s = order + 1;
    double sum = 0;
    for (int k = terms - 1; k >= 0; --k) sum += std::pow(x + k, -s);
    const double rest = x + terms, power = std::pow(rest, -s);
    sum += rest * power / (s - 1) + power / 2 + s * power / (12 * rest);
    return (order % 2 == 1 ? 1 : -1) * std::tgamma(s) * sum;
}

double exact_erfinv(double y) {
    double low = -7, high = 7;
    for (int i = 0; i < 80; ++i) (std::erf((low + high) / 2) < y ? low : high) = (low + high) / 2;
    return (low + high) / 2;
}

void add_of_one_number(Table& table) {
    const Input any{{5, 13}}, positive{{5, 13}, Values::positive};
    const Input wide{{2, 5}, Values::any, true, 0, {-3.5, -2.25, -0.75, -0.125, 0.0625, 1, 2, 7.5, 11, 40}};
    const auto add = [&](const char* torch, const std::function<Tensor(const Tensor&)>& function,
                         const std::function<double(double)>& exact, const std::vector<Input>& inputs) {
        for (const Input& input : inputs)
            add_function(
                table, torch, {input}, [function](const auto& in) { return function(in[0]); },
                [exact](const std::vector<Array>& in) { return reference::map(in[0], exact); })
                .elementwise = true;
    };
    add("torch.erfc(a)", lockstep::erfc, [](double x) { return std::erfc(x); }, {any});
    add(
        "torch.erfinv(a / 3)", [](const Tensor& x) { return erfinv(x / 3); },
        [](double x) { return exact_erfinv(x / 3); }, {any});
    add("torch.lgamma(a)", lockstep::lgamma, [](double x) { return std::lgamma(x); }, {positive, wide});
    add("torch.digamma(a)", digamma, exact_digamma, {positive, wide});
    for (const int order : {1, 2, 3})
        add(
            order == 1   ? "torch.polygamma(1, a)"
            : order == 2 ? "torch.polygamma(2, a)"
                         : "torch.polygamma(3, a)",
            [order](const Tensor& x) { return polygamma(order, x); },
            [order](double x) { return exact_polygamma(order, x); }, {positive});
    add_function(
        table, "torch.sinc(a)", {any}, [](const auto& in) { return sinc(in[0]); },
        [](const std::vector<Array>& in) {
            return reference::map(in[0],
                                  [](double x) { return std::sin(std::numbers::pi * x) / (std::numbers::pi * x); });
        })
        .error = 1e-5;  // the gradient is a difference of large numbers near 0
    add("torch.deg2rad(a)", deg2rad, [](double x) { return x * std::numbers::pi / 180; }, {any});
    add("torch.rad2deg(a)", rad2deg, [](double x) { return x * 180 / std::numbers::pi; }, {any});
}

void add_of_two_numbers(Table& table) {
    const Input any{{4, 9}}, row{{9}}, column{{4, 1}}, positive{{4, 9}, Values::positive};
    const auto add = [&](const char* torch, const std::vector<Input>& inputs,
                         const std::function<Tensor(const Tensor&, const Tensor&)>& function,
                         double (*exact)(double, double)) {
        add_function(
            table, torch, inputs, [function](const auto& in) { return function(in[0], in[1]); },
            [exact](const std::vector<Array>& in) { return reference::combine(in[0], in[1], exact); })
            .batch_inputs = {true, inputs[1].shape.size() == 2};
    };
    double (*const down)(double, double) = [](double x, double y) { return std::floor(x / y); };
    add(
        "torch.div(a, b, rounding_mode='floor')", {any, positive},
        [](const Tensor& a, const Tensor& b) { return div(a, b, RoundingMode::floor); }, down);
    add(
        "torch.div(a, b, rounding_mode='trunc')", {any, column},
        [](const Tensor& a, const Tensor& b) { return div(a, b, RoundingMode::trunc); },
        [](double x, double y) { return std::trunc(x / y); });
    add(
        "torch.copysign(a, b)", {any, row}, [](const Tensor& a, const Tensor& b) { return lockstep::copysign(a, b); },
        [](double x, double y) { return std::copysign(x, y); });
    add(
        "torch.fmax(a, b)", {any, column}, [](const Tensor& a, const Tensor& b) { return lockstep::fmax(a, b); },
        [](double x, double y) { return std::fmax(x, y); });
    add(
        "torch.fmin(a, b)", {any, row}, [](const Tensor& a, const Tensor& b) { return lockstep::fmin(a, b); },
        [](double x, double y) { return std::fmin(x, y); });
    add("torch.logaddexp2(a, b)", {any, row}, logaddexp2,
        [](double x, double y) { return std::log2(std::exp2(x) + std::exp2(y)); });
    Input fixed = any, other = row;
    fixed.gradient = other.gradient = false;
    add(
        "torch.floor_divide(a, b)", {fixed, other}, [](const Tensor& a, const Tensor& b) { return floor_divide(a, b); },
        down);
    add("torch.heaviside(a, b)", {fixed, other}, heaviside, [](double x, double y) {
        return x > 0 ? 1.0 : x < 0 ? 0.0 : y;
    });
    add(
        "torch.isclose(a, b, 0.5, 0.1)", {fixed, other},
        [](const Tensor& a, const Tensor& b) { return isclose(a, b, 0.5, 0.1); },
        [](double x, double y) { return std::abs(x - y) <= 0.1 + 0.5 * std::abs(y) ? 1.0 : 0.0; });
}

void add_of_integers(Table& table) {
    const Input left{{4, 9}, Values::classes, false, 23}, right{{9}, Values::classes, false, 5};
    const auto add = [&](const char* torch, const std::function<Tensor(const Tensor&, const Tensor&)>& function,
                         double (*exact)(double, double)) {
        add_function(
            table, torch, {left, right}, [function](const auto& in) { return function(in[0] - 11, in[1] + 1); },
            [exact](const std::vector<Array>& in) {
                return reference::combine(in[0], in[1], [exact](double x, double y) { return exact(x - 11, y + 1); });
            })
            .batch_inputs = {true, false};
    };
    add(
        "torch.floor_divide(a - 11, -(b + 1))",
        [](const Tensor& a, const Tensor& b) { return floor_divide(a, neg(b)); },
        [](double x, double y) { return std::floor(x / -y); });
    add(
        "torch.div(a - 11, b + 1, rounding_mode='trunc')",
        [](const Tensor& a, const Tensor& b) { return div(a, b, RoundingMode::trunc); },
        [](double x, double y) { return std::trunc(x / y); });
    add(
        "torch.fmod(a - 11, b + 1)", [](const Tensor& a, const Tensor& b) { return lockstep::fmod(a, b); },
        [](double x, double y) { return std::fmod(x, y); });
    add(
        "torch.remainder(a - 11, b + 1)", [](const Tensor& a, const Tensor& b) { return lockstep::remainder(a, b); },
        [](double x, double y) { return x - y * std::floor(x / y); });
    add(
        "torch.pow(a - 11, b + 1)", [](const Tensor& a, const Tensor& b) { return lockstep::pow(a, b); },
        [](double x, double y) { return std::pow(x, y); });
    add(
        "torch.remainder(a - 11, 4) + b",
        [](const Tensor& a, const Tensor& b) { return lockstep::remainder(a, 4) + b - 1; },
        [](double x, double y) { return x - 4 * std::floor(x / 4) + y - 1; });
}

}  // namespace

void add_special_functions(Table& table) {
    add_of_one_number(table);
    add_of_two_numbers(table);
    add_of_integers(table);
}

}  // namespace lockstep::test
