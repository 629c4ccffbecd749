// Transcendental functions and formulas of every element in the op table.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "lockstep/ops/functional.h"
#include "lockstep/tests/ops/function_op.h"

namespace lockstep::test {

namespace {

using OfTensor = std::function<Tensor(const Tensor&)>;
using OfNumber = std::function<double(double)>;

void add_of_one(Table& table, const char* torch, const OfTensor& function, const OfNumber& exact,
                const std::vector<Input>& inputs) {
    for (const Input& input : inputs)
        add_function(
            table, torch, {input}, [function](const auto& in) { return function(in[0]); },
            [exact](const std::vector<Array>& in) { return reference::map(in[0], exact); })
            .elementwise = true;
}

void add_transcendental_functions(Table& table) {
    const Input any{{5, 13}}, positive{{5, 13}, Values::positive}, scalar{{}, Values::positive};
    const auto add = [&](const char* torch, Tensor (*function)(const Tensor&), double (*exact)(double),
                         const Input& input) {
        add_of_one(table, torch, function, exact, {input, scalar});
    };
    add(
        "torch.log2(a)", log2, [](double x) { return std::log2(x); }, positive);
    add(
        "torch.log10(a)", log10, [](double x) { return std::log10(x); }, positive);
    add(
        "torch.exp2(a)", exp2, [](double x) { return std::exp2(x); }, any);
    add(
        "torch.atan(a)", atan, [](double x) { return std::atan(x); }, any);
    add(
        "torch.sinh(a)", sinh, [](double x) { return std::sinh(x); }, any);
    add(
        "torch.cosh(a)", cosh, [](double x) { return std::cosh(x); }, any);
    add(
        "torch.asinh(a)", asinh, [](double x) { return std::asinh(x); }, any);
    // Within their domains, and away from its ends, where derivatives are infinite.
    add_of_one(
        table, "torch.tan(a / 2)", [](const Tensor& x) { return tan(x / 2); }, [](double x) { return std::tan(x / 2); },
        {any});
    add_of_one(
        table, "torch.asin(a / 3)", [](const Tensor& x) { return asin(x / 3); },
        [](double x) { return std::asin(x / 3); }, {any});
    add_of_one(
        table, "torch.acos(a / 3)", [](const Tensor& x) { return acos(x / 3); },
        [](double x) { return std::acos(x / 3); }, {any});
    add_of_one(
        table, "torch.acosh(a + 1)", [](const Tensor& x) { return acosh(x + 1); },
        [](double x) { return std::acosh(x + 1); }, {positive});
    add_of_one(
        table, "torch.atanh(a / 3)", [](const Tensor& x) { return atanh(x / 3); },
        [](double x) { return std::atanh(x / 3); }, {any});
}

void add_of_single_tensors(Table& table) {
    const Input any{{4, 9}}, positive{{4, 9}, Values::positive};
    const auto add = [&](const char* torch, const OfTensor& function, const OfNumber& exact) {
        add_of_one(table, torch, function, exact, {any});
    };
    add("torch.trunc(a)", trunc, [](double x) { return std::trunc(x); });
    add("torch.frac(a)", frac, [](double x) { return x - std::trunc(x); });
    add(
        "torch.remainder(a, 0.75)", [](const Tensor& x) { return remainder(x, 0.75); },
        [](double x) { return x - std::floor(x / 0.75) * 0.75; });
    add(
        "torch.remainder(a, -0.75)", [](const Tensor& x) { return remainder(x, -0.75); },
        [](double x) { return x - std::floor(x / -0.75) * -0.75; });
    add(
        "F.threshold(a, 0.3, -2.0)", [](const Tensor& x) { return threshold(x, 0.3, -2); },
        [](double x) { return x > 0.3 ? x : -2; });
    add(
        "F.hardshrink(a, 0.6)", [](const Tensor& x) { return hardshrink(x, 0.6); },
        [](double x) { return std::abs(x) > 0.6 ? x : 0; });
    add(
        "F.softshrink(a, 0.6)", [](const Tensor& x) { return softshrink(x, 0.6); },
        [](double x) { return std::copysign(std::max(std::abs(x) - 0.6, 0.0), x); });
    add("F.tanhshrink(a)", tanhshrink, [](double x) { return x - std::tanh(x); });
    const auto add_positive = [&](const char* torch, const OfTensor& function, const OfNumber& exact) {
        add_of_one(table, torch, function, exact, {positive});
    };
    add_positive(
        "torch.logit(a / 3)", [](const Tensor& x) { return logit(x / 3); },
        [](double x) { return std::log(x / 3 / (1 - x / 3)); });
    add_positive(
        "torch.logit(a / 3, eps=0.4)", [](const Tensor& x) { return logit(x / 3, 0.4); },
        [](double x) {
            const double p = std::clamp(x / 3, 0.4, 0.6);
            return std::log(p / (1 - p));
        });
    add(
        "torch.nan_to_num(a)", [](const Tensor& x) { return nan_to_num(x); }, [](double x) { return x; });
    for (const char* name : {"isnan", "isinf"})
        add_function(
            table, std::string("torch.") + name + "(a)", {{{4, 9}, Values::any, false}},
            [is_nan = std::string(name) == "isnan"](const auto& in) { return is_nan ? isnan(in[0]) : isinf(in[0]); },
            [](const std::vector<Array>& in) { return Array(in[0].shape); });
}

void add_of_several_tensors(Table& table) {
    const Input any{{4, 9}}, row{{9}}, column{{4, 1}}, positive{{4, 9}, Values::positive};
    const auto pair = [&](const char* torch, const std::vector<Input>& inputs,
                          Tensor (*function)(const Tensor&, const Tensor&), double (*exact)(double, double)) {
        add_function(
            table, torch, inputs, [function](const auto& in) { return function(in[0], in[1]); },
            [exact](const std::vector<Array>& in) { return reference::combine(in[0], in[1], exact); })
            .batch_inputs = {true, inputs[1].shape.size() == 2};
    };
    const auto log_of_sum = [](double x, double y) { return std::log(std::exp(x) + std::exp(y)); };
    pair("torch.logaddexp(a, b)", {any, row}, logaddexp, log_of_sum);
    pair("torch.xlogy(a, b)", {any, positive}, xlogy, [](double x, double y) { return x * std::log(y); });
    const Input bases{{4, 9}, Values::positive}, whole{{4, 9}, Values::classes, false, 4};
    pair("torch.pow(a, b)", {bases, any}, pow, [](double x, double y) { return std::pow(x, y); });
    pair("torch.pow(a, b)", {bases, row}, pow, [](double x, double y) { return std::pow(x, y); });
    pair(
        "torch.pow(b, a)", {whole, any}, [](const Tensor& a, const Tensor& b) { return pow(b, a); },
        [](double x, double y) { return std::pow(y, x); });
    pair(
        "torch.pow(2.5, a) + b", {any, row}, [](const Tensor& a, const Tensor& b) { return pow(2.5, a) + b; },
        [](double x, double y) { return std::pow(2.5, x) + y; });
    pair("torch.atan2(a, b)", {any, column}, atan2, [](double x, double y) { return std::atan2(x, y); });
    pair("torch.hypot(a, b)", {any, row}, hypot, [](double x, double y) { return std::hypot(x, y); });
    pair("torch.fmod(a, b)", {any, positive}, fmod, [](double x, double y) { return std::fmod(x, y); });
    pair(
        "torch.remainder(a, -b)", {any, positive}, [](const Tensor& a, const Tensor& b) { return remainder(a, -b); },
        [](double x, double y) { return x + y * std::floor(x / -y); });
    pair(
        "torch.lerp(a, b, 0.3)", {any, column}, [](const Tensor& a, const Tensor& b) { return lerp(a, b, 0.3); },
        [](double a, double b) { return a + 0.3 * (b - a); });
    pair(
        "torch.lerp(a, b, 0.9)", {any, any}, [](const Tensor& a, const Tensor& b) { return lerp(a, b, 0.9); },
        [](double a, double b) { return a + 0.9 * (b - a); });
    pair(
        "torch.lerp(a, b, 0.9)", {any, row}, [](const Tensor& a, const Tensor& b) { return lerp(a, b, 0.9); },
        [](double a, double b) { return a + 0.9 * (b - a); });
    const auto triple = [&](const char* torch, const std::vector<Input>& inputs,
                            Tensor (*function)(const std::vector<Tensor>&), double (*exact)(double, double, double)) {
        add_function(
            table, torch, inputs, [function](const auto& in) { return function(in); },
            [exact](const std::vector<Array>& in) {
                Array y(in[0].shape);
                std::ptrdiff_t i = 0;
                reference::for_each_index(y.shape, [&](const Sizes& at) {
                    const auto of = [&](const Array& x) { return x[reference::position(x.shape, at)]; };
                    y[i++] = exact(of(in[0]), of(in[1]), of(in[2]));
                });
                return y;
            })
            .batch_inputs = {true, false, true};
    };
    triple(
        "torch.lerp(a, b, c)", {any, row, any}, [](const std::vector<Tensor>& in) { return lerp(in[0], in[1], in[2]); },
        [](double a, double b, double weight) { return a + weight * (b - a); });
    triple(
        "torch.addcmul(a, b, c, value=-0.7)", {any, row, column},
        [](const std::vector<Tensor>& in) { return addcmul(in[0], in[1], in[2], -0.7); },
        [](double x, double a, double b) { return x - 0.7 * a * b; });
    triple(
        "torch.addcdiv(a, b, c, value=0.7)", {any, row, positive},
        [](const std::vector<Tensor>& in) { return addcdiv(in[0], in[1], in[2], 0.7); },
        [](double x, double a, double b) { return x + 0.7 * a / b; });
}

}  // namespace

void add_formulas(Table& table) {
    add_transcendental_functions(table);
    add_of_single_tensors(table);
    add_of_several_tensors(table);
}

}  // namespace lockstep::test
