// Elementwise entries of the op table, and random masks.
#include <algorithm>
#include <cmath>

#include "lockstep/ops/functional.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/ops/op_table.h"

namespace lockstep::test {

namespace {

enum class Arithmetic { add, sub, mul, div, maximum, minimum };

struct BinaryOp final : Op {
    BinaryOp(Arithmetic k, Sizes x, Sizes y) : kind(k), a(std::move(x)), b(std::move(y)) {}
    Arithmetic kind;
    Sizes a, b;

    const char* symbol() const {
        constexpr const char* symbols[] = {"+", "-", "*", "/", "maximum", "minimum"};
        return symbols[static_cast<int>(kind)];
    }
    std::string name() const override {
        return std::string("a ") + symbol() + " b of " + std::to_string(a.size()) + " and " + std::to_string(b.size()) +
               " dimensions";
    }
    std::string torch() const override {
        if (kind == Arithmetic::maximum || kind == Arithmetic::minimum)
            return std::string("torch.") + symbol() + "(a, b)";
        return std::string("a ") + symbol() + " b";
    }
    std::vector<Input> inputs() const override {
        return {{a}, {b, kind == Arithmetic::div ? Values::positive : Values::any}};
    }
    Tensor run(const std::vector<Tensor>& in) const override {
        switch (kind) {
            case Arithmetic::sub: return in[0] - in[1];
            case Arithmetic::mul: return in[0] * in[1];
            case Arithmetic::div: return in[0] / in[1];
            case Arithmetic::maximum: return maximum(in[0], in[1]);
            case Arithmetic::minimum: return minimum(in[0], in[1]);
            case Arithmetic::add: break;
        }
        return in[0] + in[1];
    }
    Array reference(const std::vector<Array>& in) const override {
        return reference::combine(in[0], in[1], [this](double x, double y) {
            switch (kind) {
                case Arithmetic::sub: return x - y;
                case Arithmetic::mul: return x * y;
                case Arithmetic::div: return x / y;
                case Arithmetic::maximum: return std::max(x, y);
                case Arithmetic::minimum: return std::min(x, y);
                case Arithmetic::add: break;
            }
            return x + y;
        });
    }
    std::vector<Array> reference_gradients(const std::vector<Array>& in, const Array& dy) const override {
        return elementwise_gradients(in, dy);
    }
    bool hands_on_batch(std::size_t input) const override {
        const Sizes &from = input == 0 ? a : b, &other = input == 0 ? b : a;
        return from.size() >= other.size() && (from.size() > other.size() || from[0] >= other[0]);
    }
    /// A factor for each channel of each row. (Other kinds preserve the layout only if both inputs have it.)
    bool keeps_layout() const override {
        return kind == Arithmetic::mul && a.size() == 4 && b == Sizes{a[0], a[1], 1, 1};
    }
};

/// A function of one tensor.
struct UnaryOp final : Op {
    UnaryOp(std::string t, Tensor (*f)(const Tensor&), double (*r)(double), Sizes s, Values v = Values::any)
        : expression(std::move(t)), function(f), loop(r), shape(std::move(s)), values(v) {}
    std::string expression;
    Tensor (*function)(const Tensor&);
    double (*loop)(double);
    Sizes shape;
    Values values;

    std::string name() const override { return expression + " of " + std::to_string(shape.size()) + " dimensions"; }
    std::string torch() const override { return expression; }
    std::vector<Input> inputs() const override { return {{shape, values}}; }
    Tensor run(const std::vector<Tensor>& in) const override { return function(in[0]); }
    Array reference(const std::vector<Array>& in) const override { return reference::map(in[0], loop); }
    std::vector<Array> reference_gradients(const std::vector<Array>& in, const Array& dy) const override {
        return elementwise_gradients(in, dy);
    }
    bool keeps_layout() const override { return expression != "7 / a"; }  // that one has two tensors
};

/// Masks are drawn by counter, so the loop draws them again: element e of the mask has counter e if dimension 0 is the
/// batch, and also otherwise in eager use (shard 0).
struct DropoutOp final : Op {
    DropoutOp(Sizes s, double probability, bool whole_channels, bool is_batch)
        : shape(std::move(s)), p(probability), channels(whole_channels), batch(is_batch) {}
    Sizes shape;
    double p;
    bool channels, batch;

    std::string name() const override {
        return std::string(channels ? "dropout2d" : "dropout") + " p=" + std::to_string(p) + (batch ? " batch" : "");
    }
    std::string torch() const override { return ""; }
    std::vector<Input> inputs() const override { return {{shape}}; }
    Tensor run(const std::vector<Tensor>& in) const override {
        const Tensor x = batch ? in[0].tag_batch() : in[0];
        return channels ? dropout2d(x, p) : dropout(x, p);
    }
    Array reference(const std::vector<Array>& in) const override {
        Array y = in[0];
        const std::ptrdiff_t group = channels ? y.size() / (shape[0] * shape[1]) : 1;
        StepCounters state;
        state.seed = seed;
        for (std::ptrdiff_t i = 0; i < y.size(); ++i) {
            const float u = to_uniform(random_bits(state, 0, static_cast<std::uint64_t>(i / group)));
            y[i] = static_cast<double>(u) < static_cast<double>(static_cast<float>(p)) ? 0 : y[i] / (1 - p);
        }
        return y;
    }
    std::vector<Array> reference_gradients(const std::vector<Array>& in, const Array& dy) const override {
        return elementwise_gradients(in, dy);
    }
    bool keeps_layout() const override { return channels; }
};

}  // namespace

void add_elementwise(Table& table) {
    const struct {
        Sizes a, b;
    } pairs[] = {{{5, 7}, {5, 7}},
                 {{3, 1, 5}, {4, 1}},
                 {{}, {2, 3}},
                 {{6}, {}},
                 {{2, 16, 5, 3}, {2, 16, 5, 3}},
                 {{3, 32, 4, 5}, {3, 32, 1, 1}},
                 {{2, 10, 5, 3}, {2, 10, 5, 3}},
                 {{3, 20, 4, 5}, {3, 20, 1, 1}},
                 {{1, 10, 3, 3}, {10, 1, 1}},
                 {{1, 1}, {7, 1}},
                 {{67, 33}, {33}}};
    for (const auto& [a, b] : pairs)
        for (const Arithmetic kind : {Arithmetic::add, Arithmetic::sub, Arithmetic::mul, Arithmetic::div,
                                      Arithmetic::maximum, Arithmetic::minimum})
            table.push_back(std::make_unique<BinaryOp>(kind, a, b));

    const auto unary = [&](const char* torch, Tensor (*f)(const Tensor&), double (*r)(double),
                           Values values = Values::any) {
        for (const Sizes& shape : {Sizes{}, Sizes{1}, Sizes{33, 5}, Sizes{2, 16, 5, 3}, Sizes{1, 20, 3, 3}})
            table.push_back(std::make_unique<UnaryOp>(torch, f, r, shape, values));
    };
    unary(
        "-a", [](const Tensor& x) { return -x; }, [](double x) { return -x; });
    unary("torch.exp(a)", exp, [](double x) { return std::exp(x); });
    unary(
        "torch.log(a)", log, [](double x) { return std::log(x); }, Values::positive);
    unary(
        "torch.sqrt(a)", sqrt, [](double x) { return std::sqrt(x); }, Values::positive);
    unary("torch.square(a)", square, [](double x) { return x * x; });
    unary("torch.abs(a)", abs, [](double x) { return std::abs(x); });
    unary(
        "torch.reciprocal(a)", reciprocal, [](double x) { return 1 / x; }, Values::positive);
    unary(
        "torch.rsqrt(a)", rsqrt, [](double x) { return 1 / std::sqrt(x); }, Values::positive);
    unary("torch.floor(a)", floor, [](double x) { return std::floor(x); });
    unary("torch.ceil(a)", ceil, [](double x) { return std::ceil(x); });
    unary("torch.round(a)", round, [](double x) { return std::rint(x); });
    unary("torch.expm1(a)", expm1, [](double x) { return std::expm1(x); });
    unary(
        "torch.log1p(a)", log1p, [](double x) { return std::log1p(x); }, Values::positive);
    unary("torch.sin(a)", sin, [](double x) { return std::sin(x); });
    unary("torch.cos(a)", cos, [](double x) { return std::cos(x); });
    unary(
        "torch.fmod(a, 0.75)", [](const Tensor& x) { return fmod(x, 0.75); },
        [](double x) { return std::fmod(x, 0.75); });
    unary("torch.erf(a)", erf, [](double x) { return std::erf(x); });
    unary(
        "torch.clamp(a, -0.7, 1.1)", [](const Tensor& x) { return clamp(x, -0.7, 1.1); },
        [](double x) { return std::clamp(x, -0.7, 1.1); });
    unary(
        "torch.clamp(a, max=0.4)", [](const Tensor& x) { return clamp(x, std::nullopt, 0.4); },
        [](double x) { return std::min(x, 0.4); });
    unary(
        "torch.pow(a, 3)", [](const Tensor& x) { return pow(x, 3); }, [](double x) { return x * x * x; });
    unary(
        "torch.pow(a, -1.5)", [](const Tensor& x) { return pow(x, -1.5); }, [](double x) { return std::pow(x, -1.5); },
        Values::positive);
    unary("torch.relu(a)", relu, [](double x) { return x > 0 ? x : 0; });
    unary("torch.sigmoid(a)", sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); });
    unary("torch.tanh(a)", tanh, [](double x) { return std::tanh(x); });
    unary(
        "F.gelu(a)", [](const Tensor& x) { return gelu(x); },
        [](double x) { return x * 0.5 * (1 + std::erf(x / std::sqrt(2.0))); });
    unary(
        "F.gelu(a, approximate='tanh')", [](const Tensor& x) { return gelu(x, GeluForm::tanh); },
        [](double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); });
    unary(
        "F.elu(a)", [](const Tensor& x) { return elu(x); }, [](double x) { return x > 0 ? x : std::expm1(x); });
    unary("F.logsigmoid(a)", logsigmoid, [](double x) { return -std::log1p(std::exp(-x)); });
    unary("F.silu(a)", silu, [](double x) { return x / (1 + std::exp(-x)); });
    unary(
        "F.leaky_relu(a)", [](const Tensor& x) { return leaky_relu(x); },
        [](double x) { return x > 0 ? x : 0.01 * x; });
    unary(
        "F.leaky_relu(a, 0.3)", [](const Tensor& x) { return leaky_relu(x, 0.3); },
        [](double x) { return x > 0 ? x : 0.3 * x; });
    unary(
        "a + 1.5", [](const Tensor& x) { return x + 1.5; }, [](double x) { return x + 1.5; });
    unary(
        "1.5 + a", [](const Tensor& x) { return 1.5 + x; }, [](double x) { return x + 1.5; });
    unary(
        "a - 1.5", [](const Tensor& x) { return x - 1.5; }, [](double x) { return x - 1.5; });
    unary(
        "1.5 - a", [](const Tensor& x) { return 1.5 - x; }, [](double x) { return 1.5 - x; });
    unary(
        "a * -3", [](const Tensor& x) { return x * -3; }, [](double x) { return -3 * x; });
    unary(
        "-3 * a", [](const Tensor& x) { return -3 * x; }, [](double x) { return -3 * x; });
    unary(
        "a / 7", [](const Tensor& x) { return x / 7; }, [](double x) { return x / 7; });
    unary(
        "7 / a", [](const Tensor& x) { return 7 / x; }, [](double x) { return 7 / x; }, Values::positive);
    // One tensor used several times: gradients are added.
    unary(
        "a * a + a", [](const Tensor& x) { return x * x + x; }, [](double x) { return x * x + x; });

    for (const bool batch : {false, true}) {
        table.push_back(std::make_unique<DropoutOp>(Sizes{13, 7}, 0.5, false, batch));
        table.push_back(std::make_unique<DropoutOp>(Sizes{3, 32, 4, 5}, 0.25, false, batch));
        table.push_back(std::make_unique<DropoutOp>(Sizes{3, 32, 4, 5}, 0.25, true, batch));
        table.push_back(std::make_unique<DropoutOp>(Sizes{3, 10, 3, 3}, 0.5, true, batch));
        table.push_back(std::make_unique<DropoutOp>(Sizes{2, 20, 8, 8}, 0.5, true, batch));
        table.push_back(std::make_unique<DropoutOp>(Sizes{9, 50}, 0.5, true, batch));
    }
    table.push_back(std::make_unique<DropoutOp>(Sizes{4, 5}, 0.0, false, false));
    table.push_back(std::make_unique<DropoutOp>(Sizes{3, 5}, 0.999999, false, false));
}

}  // namespace lockstep::test
