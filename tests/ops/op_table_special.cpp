// Special values in the op table: infinities, NaN, zeros of both signs, numbers whose reciprocal overflows, empty
// reductions. Gradients are the results of PyTorch's rule (derivatives.yaml), written out.
#include <fmt/format.h>

#include <cmath>
#include <functional>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/loss.h"
#include "lockstep/tests/ops/op_table.h"

namespace lockstep::test {

namespace {

constexpr double inf = INFINITY, nan = NAN;
constexpr double tiny = 0x1p-133;  ///< an f32 whose reciprocal is not an f32

/// One expression, its result and its gradients as formulas.
struct SpecialOp final : Op {
    std::string label, expression;  ///< an empty label means the expression
    std::vector<Input> in;
    std::function<Tensor(const std::vector<Tensor>&)> function;
    std::function<Array(const std::vector<Array>&)> result;
    std::function<std::vector<Array>(const std::vector<Array>& in, const Array& dy)> gradients;

    std::string name() const override { return "special values: " + (label.empty() ? expression : label); }
    std::string torch() const override { return expression; }
    std::vector<Input> inputs() const override { return in; }
    Tensor run(const std::vector<Tensor>& tensors) const override { return function(tensors); }
    Array reference(const std::vector<Array>& arrays) const override { return result(arrays); }
    std::vector<Array> reference_gradients(const std::vector<Array>& arrays, const Array& dy) const override {
        return gradients(arrays, dy);
    }
    bool is_special() const override { return true; }
};

Sizes vector_shape(const std::vector<double>& values) { return {static_cast<std::ptrdiff_t>(values.size())}; }
Input exactly(Sizes shape, std::vector<double> values, bool gradient = true) {
    return {std::move(shape), Values::any, gradient, 0, std::move(values)};
}
Input exactly(const std::vector<double>& values, bool gradient = true) {
    return exactly(vector_shape(values), values, gradient);
}
Input targets(const std::vector<double>& values) { return {vector_shape(values), Values::classes, false, 0, values}; }

/// y = f(x), dx = slope(x, dy), element by element.
std::unique_ptr<Op> unary(std::string torch, Tensor (*function)(const Tensor&), std::vector<double> values,
                          double (*f)(double), double (*slope)(double x, double dy), bool gradient = true) {
    auto op = std::make_unique<SpecialOp>();
    op->expression = std::move(torch);
    op->in = {exactly(values, gradient)};
    op->function = [function](const std::vector<Tensor>& in) { return function(in[0]); };
    op->result = [f](const std::vector<Array>& in) { return reference::map(in[0], f); };
    op->gradients = [slope](const std::vector<Array>& in, const Array& dy) {
        return std::vector<Array>{reference::combine(in[0], dy, slope)};
    };
    return op;
}

/// All pairs of two lists.
std::unique_ptr<Op> binary(std::string torch, Tensor (*function)(const Tensor&, const Tensor&), std::vector<double> a,
                           std::vector<double> b, double (*f)(double, double),
                           double (*da)(double a, double b, double dy), double (*db)(double a, double b, double dy)) {
    std::vector<double> left, right;
    for (const double x : a)
        for (const double y : b) {
            left.push_back(x);
            right.push_back(y);
        }
    auto op = std::make_unique<SpecialOp>();
    op->expression = std::move(torch);
    op->in = {exactly(left, da != nullptr), exactly(right)};
    op->function = [function](const std::vector<Tensor>& in) { return function(in[0], in[1]); };
    op->result = [f](const std::vector<Array>& in) { return reference::combine(in[0], in[1], f); };
    op->gradients = [da, db](const std::vector<Array>& in, const Array& dy) {
        std::vector<Array> result{Array(dy.shape), Array(dy.shape)};
        for (std::ptrdiff_t i = 0; i < dy.size(); ++i) {
            if (da != nullptr) result[0][i] = da(in[0][i], in[1][i], dy[i]);
            result[1][i] = db(in[0][i], in[1][i], dy[i]);
        }
        return result;
    };
    return op;
}

double limited(double x, double low, double high) { return x < low ? low : x > high ? high : x; }

/// Activations that consist of several operations, at their limits and beyond them.
void add_activations(Table& table) {
    const std::vector<double> all{nan, inf, -inf, 0.0, -0.0, 1.0, -1.0, 7.0, -7.0, 100.0, -100.0};
    table.push_back(unary(
        "F.softplus(a)", [](const Tensor& x) { return softplus(x); }, all,
        [](double x) { return x > 20 ? x : std::log1p(std::exp(x)); },
        [](double x, double dy) { return x > 20 ? dy : dy / (1 + std::exp(-x)); }));
    table.push_back(unary(
        "F.elu(a)", [](const Tensor& x) { return elu(x); }, all, [](double x) { return x > 0 ? x : std::expm1(x); },
        [](double x, double dy) { return x <= 0 ? dy * std::exp(x) : dy; }));
    table.push_back(unary(
        "F.hardtanh(a)", [](const Tensor& x) { return hardtanh(x); }, all, [](double x) { return limited(x, -1, 1); },
        [](double x, double dy) { return x > -1 && x < 1 ? dy : 0; }));
    table.push_back(unary(
        "F.relu6(a - 1)", [](const Tensor& x) { return relu6(x - 1.0); }, all,
        [](double x) { return limited(x - 1, 0, 6); },
        [](double x, double dy) { return x - 1 > 0 && x - 1 < 6 ? dy : 0; }));
    table.push_back(unary(
        "F.hardsigmoid(a)", hardsigmoid, all, [](double x) { return limited(x + 3, 0, 6) / 6; },
        [](double x, double dy) { return x > -3 && x < 3 ? dy / 6 : 0; }));
    table.push_back(unary(
        "F.hardswish(a)", hardswish, {inf, -7.0, 0.0, -0.0, 1.0, -1.0, 3.0, -3.0, 7.0},
        [](double x) { return x * limited(x + 3, 0, 6) / 6; },
        [](double x, double dy) { return x < -3  ? 0
                                         : x > 3 ? dy
                                                 : dy * (x / 3 + 0.5); }));
    table.push_back(unary(
        "F.mish(a)", mish, {nan, 0.0, -0.0, 1.0, -1.0, 100.0, -100.0},
        [](double x) { return x > 20 ? x : x * std::tanh(std::log1p(std::exp(x))); },
        [](double x, double dy) {
            if (x > 20) return dy;
            const double soft = std::tanh(std::log1p(std::exp(x)));
            return dy * (soft + x * (1 - soft * soft) / (1 + std::exp(-x)));
        }));
    table.push_back(unary(
        "F.softsign(a)", softsign, {0.0, -0.0, 1.0, -1.0, 1e6}, [](double x) { return x / (1 + std::abs(x)); },
        [](double x, double dy) { return dy / ((1 + std::abs(x)) * (1 + std::abs(x))); }));
}

void add_unary(Table& table) {
    const std::vector<double> all{nan, inf, -inf, 0.0, -0.0, 1.0, -1.0, 4.0, tiny, -tiny};
    const std::vector<double> roots{nan, inf, -inf, 0.0, -0.0, 1.0, -1.0, 4.0};
    // Only a comparison decides: NaN passes its gradient on.
    table.push_back(unary(
        "torch.relu(a)", relu, all, [](double x) { return x < 0 ? 0 : x; },
        [](double x, double dy) { return x <= 0 ? 0 : dy; }));
    table.push_back(unary(
        "torch.sqrt(a)", sqrt, roots, [](double x) { return std::sqrt(x); },
        [](double x, double dy) { return dy / (2 * std::sqrt(x)); }));
    table.push_back(unary(
        "torch.log(a)", log, roots, [](double x) { return std::log(x); }, [](double x, double dy) { return dy / x; }));
    table.push_back(unary(
        "torch.exp(a)", exp, all, [](double x) { return std::exp(x); },
        [](double x, double dy) { return dy * std::exp(x); }));
    table.push_back(unary(
        "torch.square(a)", square, all, [](double x) { return x * x; },
        [](double x, double dy) { return dy * (2 * x); }));
    const std::vector<double> halves{nan, inf, -inf, 0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 1e6};
    table.push_back(unary(
        "torch.abs(a)", abs, all, [](double x) { return std::abs(x); },
        [](double x, double dy) { return x > 0   ? dy
                                         : x < 0 ? -dy
                                                 : 0; }));
    table.push_back(unary(
        "torch.reciprocal(a)", reciprocal, roots, [](double x) { return 1 / x; },
        [](double x, double dy) { return -dy * (1 / x) * (1 / x); }));
    table.push_back(unary(
        "torch.rsqrt(a)", rsqrt, roots, [](double x) { return 1 / std::sqrt(x); },
        [](double x, double dy) { return -0.5 * dy * std::pow(1 / std::sqrt(x), 3); }));
    table.push_back(unary(
        "torch.floor(a)", floor, halves, [](double x) { return std::floor(x); }, [](double, double) { return 0.0; }));
    table.push_back(unary(
        "torch.ceil(a)", ceil, halves, [](double x) { return std::ceil(x); }, [](double, double) { return 0.0; }));
    table.push_back(unary(
        "torch.round(a)", round, halves, [](double x) { return std::rint(x); }, [](double, double) { return 0.0; }));
    table.push_back(unary(
        "torch.expm1(a)", expm1, roots, [](double x) { return std::expm1(x); },
        [](double x, double dy) { return dy * (std::expm1(x) + 1); }));
    table.push_back(unary(
        "torch.log1p(a)", log1p, roots, [](double x) { return std::log1p(x); },
        [](double x, double dy) { return dy / (x + 1); }));
    table.push_back(unary(
        "torch.erf(a)", erf, roots, [](double x) { return std::erf(x); },
        [](double x, double dy) { return dy * (M_2_SQRTPI * std::exp(-x * x)); }));
    const std::vector<double> turns{nan, inf, -inf, 0.0, -0.0, 1.0, -4.0, 1024.0, 1e5, -1e10};
    table.push_back(unary(
        "torch.sin(a)", sin, turns, [](double x) { return std::sin(x); },
        [](double x, double dy) { return dy * std::cos(x); }));
    table.push_back(unary(
        "torch.cos(a)", cos, turns, [](double x) { return std::cos(x); },
        [](double x, double dy) { return -dy * std::sin(x); }));
    table.push_back(unary(
        "torch.fmod(a, -2.5)", [](const Tensor& x) { return fmod(x, -2.5); }, turns,
        [](double x) { return std::fmod(x, -2.5); }, [](double, double dy) { return dy; }));
    table.push_back(unary(
        "torch.fmod(a, 0)", [](const Tensor& x) { return fmod(x, 0); }, turns,
        [](double) { return std::numeric_limits<double>::quiet_NaN(); }, [](double, double dy) { return dy; }));
    table.push_back(unary(
        "torch.fmod(a, float('inf'))", [](const Tensor& x) { return fmod(x, HUGE_VAL); }, turns,
        [](double x) { return std::fmod(x, HUGE_VAL); }, [](double, double dy) { return dy; }));
    table.push_back(unary(
        "torch.clamp(a, -1, 1)", [](const Tensor& x) { return clamp(x, -1, 1); }, roots,
        [](double x) { return x < -1  ? -1
                              : x > 1 ? 1
                                      : x; },
        [](double x, double dy) { return x >= -1 && x <= 1 ? dy : 0; }));
    table.push_back(unary(
        "torch.clamp(a, 2, 1)", [](const Tensor& x) { return clamp(x, 2, 1); }, {inf, -inf, 0.0, 1.5, 4.0},
        [](double) { return 1.0; }, [](double, double) { return 0.0; }));
    table.push_back(unary(
        "torch.pow(a, 0)", [](const Tensor& x) { return pow(x, 0); }, roots, [](double) { return 1.0; },
        [](double, double) { return 0.0; }));
    table.push_back(unary(
        "torch.pow(a, 0.5)", [](const Tensor& x) { return pow(x, 0.5); }, roots, [](double x) { return std::sqrt(x); },
        [](double x, double dy) { return dy / (2 * std::sqrt(x)); }));
    table.push_back(unary(
        "torch.pow(a, 3)", [](const Tensor& x) { return pow(x, 3); }, roots, [](double x) { return x * x * x; },
        [](double x, double dy) { return dy * (3 * (x * x)); }));
    table.push_back(unary(
        "torch.sigmoid(a)", sigmoid, all, [](double x) { return 1 / (1 + std::exp(-x)); },
        [](double x, double dy) {
            const double y = 1 / (1 + std::exp(-x));
            return dy * (1 - y) * y;
        }));
    table.push_back(unary(
        "F.logsigmoid(a)", logsigmoid, {nan, inf, -inf, 0.0, -0.0, 1.0, -90.0, 90.0},
        [](double x) { return x < 0 ? x - std::log1p(std::exp(x)) : -std::log1p(std::exp(-x)); },
        [](double x, double dy) { return dy / (1 + std::exp(x)); }));
    table.push_back(unary(
        "torch.tanh(a)", tanh, all, [](double x) { return std::tanh(x); },
        [](double x, double dy) { return dy * (1 - std::tanh(x) * std::tanh(x)); }));
    table.push_back(unary(
        "F.leaky_relu(a, 0.3)", [](const Tensor& x) { return leaky_relu(x, 0.3); }, all,
        [](double x) { return x > 0 ? x : 0.3 * x; }, [](double x, double dy) { return x > 0 ? dy : 0.3 * dy; }));
    table.push_back(unary(
        "-a", [](const Tensor& x) { return -x; }, all, [](double x) { return -x; },
        [](double, double dy) { return -dy; }));
    table.push_back(unary(
        "a - 1.5", [](const Tensor& x) { return x - 1.5; }, all, [](double x) { return x - 1.5; },
        [](double, double dy) { return dy; }));
    // A quotient shows the sign of zero.
    table.push_back(unary(
        "7 / (a * 2)", [](const Tensor& x) { return 7 / (x * 2); }, roots, [](double x) { return 7 / (2 * x); },
        [](double x, double dy) { return 2 * -(dy * (7 / (2 * x) / (2 * x))); }));
    table.push_back(unary(
        "7 / (a / -2)", [](const Tensor& x) { return 7 / (x / -2); }, roots, [](double x) { return 7 / (x / -2); },
        [](double x, double dy) { return -(dy * (7 / (x / -2) / (x / -2))) / -2; }));
    table.push_back(unary(
        "a * float('inf')", [](const Tensor& x) { return x * inf; }, all, [](double x) { return x * inf; },
        [](double, double dy) { return dy * inf; }));
    table.push_back(unary(
        "a / float('inf')", [](const Tensor& x) { return x / inf; }, all, [](double x) { return x / inf; },
        [](double, double dy) { return dy / inf; }));
    table.push_back(unary(
        "a / 0", [](const Tensor& x) { return x / 0; }, roots, [](double x) { return x / 0.0; },
        [](double, double dy) { return dy / 0.0; }));
    // The result is finite although 1 / tiny overflows in f32; the gradient would overflow and is omitted.
    table.push_back(unary(
        "a / 2.0**-133", [](const Tensor& x) { return x / tiny; }, {0x1p-30, -0x1p-20, 0, inf, nan},
        [](double x) { return x / tiny; }, [](double, double dy) { return dy; }, false));
    table.push_back(unary(
        "a / 2.0**127", [](const Tensor& x) { return x / 0x1p127; }, {0x1.234566p127, -0x1.234566p20, inf, nan},
        [](double x) { return x / 0x1p127; }, [](double, double dy) { return dy / 0x1p127; }));
}

void add_binary(Table& table) {
    const std::vector<double> values{nan, inf, -inf, 0.0, -0.0, 1.0, -3.0};
    table.push_back(binary(
        "a + b", add, values, values, [](double a, double b) { return a + b; },
        [](double, double, double dy) { return dy; }, [](double, double, double dy) { return dy; }));
    table.push_back(binary(
        "a * b", mul, values, values, [](double a, double b) { return a * b; },
        [](double, double b, double dy) { return dy * b; }, [](double a, double, double dy) { return dy * a; }));
    const auto db = [](double a, double b, double dy) { return -dy * ((a / b) / b); };
    table.push_back(binary(
        "a / b", div, values, values, [](double a, double b) { return a / b; },
        [](double, double b, double dy) { return dy / b; }, db));
    // Equal numbers share the gradient, and NaN passes it on to both.
    table.push_back(binary(
        "torch.maximum(a, b)", maximum, values, values,
        [](double a, double b) { return std::isnan(a) || std::isnan(b) ? nan : std::max(a, b); },
        [](double a, double b, double dy) { return a == b  ? dy / 2
                                                   : a < b ? 0
                                                           : dy; },
        [](double a, double b, double dy) { return a == b  ? dy / 2
                                                   : a > b ? 0
                                                           : dy; }));
    table.push_back(binary(
        "torch.minimum(a, b)", minimum, values, values,
        [](double a, double b) { return std::isnan(a) || std::isnan(b) ? nan : std::min(a, b); },
        [](double a, double b, double dy) { return a == b  ? dy / 2
                                                   : a > b ? 0
                                                           : dy; },
        [](double a, double b, double dy) { return a == b  ? dy / 2
                                                   : a < b ? 0
                                                           : dy; }));
    // dy / b is infinite in f32, and a / b is 0. (The gradient of a is infinite as well.)
    table.push_back(binary(
        "a / b", div, {0.0, -0.0}, {tiny, -tiny}, [](double a, double b) { return a / b; }, nullptr, db));
}

/// Windows of k x k, stride 2: the maximum is the last NaN, or else the first largest element.
std::unique_ptr<Op> pooling(Sizes shape, std::vector<double> values, int k, int padding) {
    auto op = std::make_unique<SpecialOp>();
    op->expression = fmt::format("F.max_pool2d(a, {}, 2, {})", k, padding);
    op->in = {exactly(std::move(shape), std::move(values))};
    op->function = [=](const std::vector<Tensor>& in) { return max_pool2d(in[0], k, Pair(2), padding); };
    const auto walk = [=](const Array& x, const std::function<void(std::ptrdiff_t y, std::ptrdiff_t winner)>& f) {
        const reference::Window window{2, 2, padding, padding};
        const Sizes out = reference::window_output(x.shape, 1, k, k, window);
        std::vector<std::ptrdiff_t> winners(static_cast<std::size_t>(out[2] * out[3]), -1);
        reference::for_each_window_element(x.shape, k, k, window, out,
                                           [&](std::ptrdiff_t xi, std::ptrdiff_t, std::ptrdiff_t, std::ptrdiff_t yi) {
                                               std::ptrdiff_t& winner = winners[static_cast<std::size_t>(yi)];
                                               if (winner < 0 || x[xi] > x[winner] || std::isnan(x[xi])) winner = xi;
                                           });
        for (std::size_t i = 0; i < winners.size(); ++i) f(static_cast<std::ptrdiff_t>(i), winners[i]);
        return out;
    };
    op->result = [walk](const std::vector<Array>& in) {
        std::vector<double> largest;
        Array y(walk(in[0], [&](std::ptrdiff_t, std::ptrdiff_t winner) { largest.push_back(in[0][winner]); }));
        y.v = largest;
        return y;
    };
    op->gradients = [walk](const std::vector<Array>& in, const Array& dy) {
        Array dx(in[0].shape);
        walk(in[0], [&](std::ptrdiff_t y, std::ptrdiff_t winner) { dx[winner] += dy[y]; });
        return std::vector<Array>{dx};
    };
    return op;
}

/// log_softmax of the rows of `values`.
std::unique_ptr<Op> log_softmax_rows(Sizes shape, std::vector<double> values) {
    auto op = std::make_unique<SpecialOp>();
    op->expression = "F.log_softmax(a, 1)";
    op->in = {exactly(std::move(shape), std::move(values))};
    op->function = [](const std::vector<Tensor>& in) { return log_softmax(in[0], 1); };
    op->result = [](const std::vector<Array>& in) { return reference::log_softmax(in[0], 1); };
    op->gradients = [](const std::vector<Array>& in, const Array& dy) {
        Array dx = reference::log_softmax(in[0], 1);
        const Array total = reference::sum(dy, {1});
        for (std::ptrdiff_t i = 0; i < dx.size(); ++i) dx[i] = dy[i] - std::exp(dx[i]) * total[i / dx.shape[1]];
        return std::vector<Array>{dx};
    };
    return op;
}

std::unique_ptr<Op> nll(std::string label, std::vector<double> log_probabilities, std::vector<double> classes,
                        std::vector<double> weights, std::int64_t ignore) {
    auto op = std::make_unique<SpecialOp>();
    op->label = std::move(label);
    op->expression = fmt::format("F.nll_loss(a, b, weight=c, ignore_index={})", ignore);
    const auto rows = static_cast<std::ptrdiff_t>(classes.size());
    op->in = {exactly({rows, static_cast<std::ptrdiff_t>(weights.size())}, std::move(log_probabilities)),
              targets(classes), exactly(weights, false)};
    op->function = [ignore](const std::vector<Tensor>& in) {
        return NllLoss{{in[2], ignore, Reduction::mean}}(in[0], in[1]).value();
    };
    op->result = [ignore](const std::vector<Array>& in) {
        const reference::Nll sums = reference::nll(in[0], in[1], in[2], static_cast<double>(ignore));
        return Array(Sizes{}, sums.numerator / sums.weight);
    };
    op->gradients = [ignore](const std::vector<Array>& in, const Array& dy) {
        const double weight = reference::nll(in[0], in[1], in[2], static_cast<double>(ignore)).weight;
        Array dx(in[0].shape);
        for (std::ptrdiff_t row = 0; row < in[1].size(); ++row) {
            const auto c = static_cast<std::ptrdiff_t>(in[1][row]);
            if (c != ignore) dx[row * dx.shape[1] + c] = -in[2][c] * dy[0] / weight;
        }
        return std::vector<Array>{dx, {}, {}};
    };
    return op;
}

std::unique_ptr<Op> mse(std::vector<double> a, std::vector<double> b) {
    auto op = std::make_unique<SpecialOp>();
    op->expression = "F.mse_loss(a, b)";
    op->in = {exactly(a), exactly(b)};
    op->function = [](const std::vector<Tensor>& in) { return mse_loss(in[0], in[1]).value(); };
    op->result = [](const std::vector<Array>& in) {
        double sum = 0;
        for (std::ptrdiff_t i = 0; i < in[0].size(); ++i) sum += (in[0][i] - in[1][i]) * (in[0][i] - in[1][i]);
        return Array(Sizes{}, sum / static_cast<double>(in[0].size()));
    };
    op->gradients = [](const std::vector<Array>& in, const Array& dy) {
        std::vector<Array> result{in[0], in[0]};
        for (std::ptrdiff_t i = 0; i < in[0].size(); ++i) {
            result[0][i] = 2 * (dy[0] / static_cast<double>(in[0].size())) * (in[0][i] - in[1][i]);
            result[1][i] = -result[0][i];
        }
        return result;
    };
    return op;
}

/// Sums and means without elements.
std::unique_ptr<Op> empty(std::string torch, Tensor (*function)(const Tensor&), Sizes shape, Sizes out, double value) {
    auto op = std::make_unique<SpecialOp>();
    op->expression = std::move(torch);
    op->in = {Input{shape}};
    op->function = [function](const std::vector<Tensor>& in) { return function(in[0]); };
    op->result = [out, value](const std::vector<Array>&) { return Array(out, value); };
    op->gradients = [](const std::vector<Array>& in, const Array&) { return std::vector<Array>{in[0]}; };
    return op;
}

std::unique_ptr<Op> argmax_rows(Sizes shape, std::vector<double> values, std::vector<double> expected) {
    auto op = std::make_unique<SpecialOp>();
    op->expression = "a.argmax(1)";
    op->in = {exactly(std::move(shape), std::move(values), false)};
    op->function = [](const std::vector<Tensor>& in) { return argmax(in[0], 1); };
    op->result = [expected](const std::vector<Array>&) {
        Array y(vector_shape(expected));
        y.v = expected;
        return y;
    };
    return op;
}

/// x (rows, 3) times weight (2, 3)^T: every product counts, including 0 times infinity.
std::unique_ptr<Op> linear_rows(std::vector<double> x, std::vector<double> weight) {
    auto op = std::make_unique<SpecialOp>();
    op->expression = "F.linear(a, b)";
    const auto rows = static_cast<std::ptrdiff_t>(x.size()) / 3;
    op->in = {exactly({rows, 3}, std::move(x)), exactly({2, 3}, std::move(weight))};
    op->function = [](const std::vector<Tensor>& in) { return linear(in[0], in[1]); };
    op->result = [](const std::vector<Array>& in) {
        Array y(Sizes{in[0].shape[0], 2});
        for (std::ptrdiff_t i = 0; i < y.size(); ++i)
            for (std::ptrdiff_t k = 0; k < 3; ++k) y[i] += in[0][i / 2 * 3 + k] * in[1][i % 2 * 3 + k];
        return y;
    };
    op->gradients = [](const std::vector<Array>& in, const Array& dy) {
        std::vector<Array> result{Array(in[0].shape), Array(in[1].shape)};
        for (std::ptrdiff_t i = 0; i < dy.size(); ++i)
            for (std::ptrdiff_t k = 0; k < 3; ++k) {
                result[0][i / 2 * 3 + k] += dy[i] * in[1][i % 2 * 3 + k];
                result[1][i % 2 * 3 + k] += dy[i] * in[0][i / 2 * 3 + k];
            }
        return result;
    };
    return op;
}

}  // namespace

void add_special_values(Table& table) {
    add_unary(table);
    add_activations(table);
    add_binary(table);
    table.push_back(pooling({1, 1, 4, 6}, {nan, 1,    2, nan,  -inf, -inf, 3,  nan, inf,  4,   -inf, -inf,
                                           5,   -inf, 0, -0.0, inf,  inf,  -1, -2,  -0.0, 0.0, nan,  inf},
                            2, 0));
    table.push_back(
        pooling({1, 1, 3, 5}, {nan, -inf, -inf, 1, inf, 2, -inf, -inf, nan, 3, 4, -inf, -inf, 5, -0.0}, 3, 1));
    table.push_back(log_softmax_rows(
        {7, 3}, {nan, 1, 2, inf, 1, 2, inf, inf, 1, -inf, 1, 2, -inf, -inf, -inf, -inf, -inf, 5, nan, inf, -inf}));
    table.push_back(nll("no row counts", {-1, -2, -3, -4}, {1, 1}, {1, 1}, 1));
    table.push_back(nll("impossible class", {-1, -inf, -3, -4}, {1, 0}, {1, 2}, -100));
    table.push_back(nll("impossible class of weight 0", {-1, -inf, -3, -4}, {1, 0}, {1, 0}, -100));
    table.push_back(nll("all weights 0", {-1, -2, -3, -4}, {1, 0}, {0, 0}, -100));
    table.push_back(mse({inf, 1, 2}, {1, 1, 1}));
    table.push_back(mse({inf, 1, nan}, {inf, 1, 1}));
    table.push_back(empty(
        "a.sum()", [](const Tensor& x) { return sum(x); }, {0}, {}, 0));
    table.push_back(empty(
        "a.mean()", [](const Tensor& x) { return mean(x); }, {0}, {}, nan));
    table.push_back(empty(
        "a.sum(1)", [](const Tensor& x) { return sum(x, 1); }, {3, 0}, {3}, 0));
    table.push_back(empty(
        "a.mean(1)", [](const Tensor& x) { return mean(x, 1); }, {3, 0}, {3}, nan));
    table.push_back(argmax_rows({6, 3},
                                {1, nan, 2, nan, nan, inf, inf, 1, inf, -inf, -inf, -inf, 2, inf, nan, 0, -0.0, 0},
                                {1, 0, 0, 0, 2, 0}));
    table.push_back(linear_rows({0, inf, 1, nan, 0, 0, 1, 2, 3, 0, 0, -inf}, {1, 0, 2, 0, 1, 1}));
}

}  // namespace lockstep::test
