// Comparisons and choices in the op table. Conditions are integers that are compared with 0.
#include <algorithm>
#include <cmath>
#include <functional>

#include "lockstep/ops/functional.h"
#include "lockstep/tests/ops/function_op.h"
#include "lockstep/tests/ops/op_table.h"

namespace lockstep::test {

namespace {

/// A function of two tensors that are broadcast, without gradient.
struct ComparisonOp final : Op {
    ComparisonOp(std::string t, Tensor (*f)(const Tensor&, const Tensor&), bool (*r)(double, double), Input x, Input y)
        : expression(std::move(t)), function(f), loop(r), a(std::move(x)), b(std::move(y)) {}
    std::string expression;
    Tensor (*function)(const Tensor&, const Tensor&);
    bool (*loop)(double, double);
    Input a, b;

    std::string name() const override {
        return expression + " of " + std::to_string(a.shape.size()) + " and " + std::to_string(b.shape.size()) +
               " dimensions" + (a.classes > 0 ? ", integers" : "") + (a.exact.empty() ? "" : ", special values");
    }
    std::string torch() const override { return expression; }
    std::vector<Input> inputs() const override { return {a, b}; }
    Tensor run(const std::vector<Tensor>& in) const override { return function(in[0], in[1]); }
    Array reference(const std::vector<Array>& in) const override {
        return reference::combine(in[0], in[1], [this](double x, double y) { return loop(x, y) ? 1.0 : 0.0; });
    }
    bool hands_on_batch(std::size_t input) const override {
        const Sizes &from = input == 0 ? a.shape : b.shape, &other = input == 0 ? b.shape : a.shape;
        return from.size() >= other.size() && (from.size() > other.size() || from[0] >= other[0]);
    }
};

struct NotOp final : Op {
    explicit NotOp(Input x) : input(std::move(x)) {}
    Input input;

    std::string name() const override {
        return "logical_not of " + std::to_string(input.shape.size()) + " dimensions" +
               (input.exact.empty() ? "" : ", special values");
    }
    std::string torch() const override { return "torch.logical_not(a)"; }
    std::vector<Input> inputs() const override { return {input}; }
    Tensor run(const std::vector<Tensor>& in) const override { return logical_not(in[0]); }
    Array reference(const std::vector<Array>& in) const override {
        return reference::map(in[0], [](double x) { return x == 0 ? 1.0 : 0.0; });
    }
};

/// where(c > 0, a, b), or a function that chooses like it.
struct ChoiceOp final : Op {
    ChoiceOp(std::string t, std::function<Tensor(const std::vector<Tensor>&)> f, Sizes condition, Sizes x, Sizes y)
        : expression(std::move(t)), function(std::move(f)), c(std::move(condition)), a(std::move(x)), b(std::move(y)) {}
    std::string expression;
    std::function<Tensor(const std::vector<Tensor>&)> function;
    Sizes c, a, b;
    double number = 0;  ///< in place of b, if that has no elements

    bool has_number() const { return b == Sizes{0}; }
    std::string name() const override {
        return expression + " of " + std::to_string(c.size()) + " and " + std::to_string(a.size()) + " dimensions";
    }
    std::string torch() const override { return expression; }
    std::vector<Input> inputs() const override {
        std::vector<Input> in{{c, Values::classes, false, 2}, {a}};
        if (!has_number()) in.push_back({b});
        return in;
    }
    Tensor run(const std::vector<Tensor>& in) const override { return function(in); }
    Array reference(const std::vector<Array>& in) const override {
        const Array other = has_number() ? Array(Sizes{}, number) : in[2];
        const Array first = reference::combine(in[0], in[1], [](double on, double x) { return on > 0 ? x : NAN; });
        return reference::combine(first, other, [](double x, double y) { return std::isnan(x) ? y : x; });
    }
    std::vector<Array> reference_gradients(const std::vector<Array>& in, const Array& dy) const override {
        return elementwise_gradients(in, dy);
    }
    bool hands_on_batch(std::size_t input) const override {
        const std::vector<Sizes> all{c, a, has_number() ? Sizes{} : b};
        Sizes from = all[input];
        for (const Sizes& other : all)
            if (other.size() > from.size() || (other.size() == from.size() && other[0] > from[0])) return false;
        return true;
    }
};

/// Functions of integers and floats, and of masks and floats: in the dtype of the floats.
void add_promotions(Table& table) {
    const auto add = [&](const char* torch, const std::function<Tensor(const Tensor&, const Tensor&)>& function,
                         const std::function<double(double, double)>& loop) {
        const struct { Sizes a, b; } pairs[] = {{{5, 7}, {5, 7}}, {{6, 40}, {40}}};
        for (const auto& [a, b] : pairs) {
            FunctionOp& op = add_function(
                table, torch, {{a, Values::classes, false, 4}, {b}},
                [function](const auto& in) { return function(in[0], in[1]); },
                [loop](const std::vector<Array>& in) { return reference::combine(in[0], in[1], loop); });
            op.elementwise = true;
            op.batch_inputs = {true, a == b};
        }
    };
    add(
        "a + b", [](const Tensor& a, const Tensor& b) { return a + b; }, [](double x, double y) { return x + y; });
    add(
        "b - a", [](const Tensor& a, const Tensor& b) { return b - a; }, [](double x, double y) { return y - x; });
    add(
        "(a > 1) * b", [](const Tensor& a, const Tensor& b) { return (a > 1) * b; },
        [](double x, double y) { return x > 1 ? y : 0; });
    add(
        "torch.maximum(a, b)", [](const Tensor& a, const Tensor& b) { return maximum(a, b); },
        [](double x, double y) { return std::max(x, y); });
    add(
        "torch.where(a > 1, a, b)", [](const Tensor& a, const Tensor& b) { return where(a > 1, a, b); },
        [](double x, double y) { return x > 1 ? x : y; });
}

}  // namespace

void add_selections(Table& table) {
    add_promotions(table);
    const struct {
        const char* torch;
        Tensor (*function)(const Tensor&, const Tensor&);
        bool (*loop)(double, double);
    } comparisons[] = {
        {"torch.eq(a, b)", eq, [](double x, double y) { return x == y; }},
        {"torch.ne(a, b)", ne, [](double x, double y) { return x != y; }},
        {"torch.lt(a, b)", lt, [](double x, double y) { return x < y; }},
        {"torch.le(a, b)", le, [](double x, double y) { return x <= y; }},
        {"torch.gt(a, b)", gt, [](double x, double y) { return x > y; }},
        {"torch.ge(a, b)", ge, [](double x, double y) { return x >= y; }},
        {"torch.logical_and(a, b)", logical_and, [](double x, double y) { return x != 0 && y != 0; }},
        {"torch.logical_or(a, b)", logical_or, [](double x, double y) { return x != 0 || y != 0; }},
        {"torch.logical_xor(a, b)", logical_xor, [](double x, double y) { return (x != 0) != (y != 0); }}};
    const struct {
        Sizes a, b;
    } pairs[] = {{{5, 7}, {5, 7}}, {{3, 1, 5}, {4, 1}}, {{}, {2, 3}}, {{2, 16, 5, 3}, {2, 16, 5, 3}}, {{67, 33}, {33}}};
    std::vector<double> left, right;  // all pairs
    for (const double x : {double{NAN}, double{INFINITY}, -double{INFINITY}, 0.0, -0.0, 1.0, -3.0})
        for (const double y : {double{NAN}, double{INFINITY}, -double{INFINITY}, 0.0, -0.0, 1.0, -3.0}) {
            left.push_back(x);
            right.push_back(y);
        }
    const Sizes all{static_cast<std::ptrdiff_t>(left.size())};
    for (const auto& [torch, function, loop] : comparisons) {
        for (const auto& [a, b] : pairs)
            table.push_back(std::make_unique<ComparisonOp>(torch, function, loop, Input{a, Values::any, false},
                                                           Input{b, Values::any, false}));
        table.push_back(std::make_unique<ComparisonOp>(torch, function, loop, Input{{9, 33}, Values::classes, false, 3},
                                                       Input{{33}, Values::classes, false, 3}));
        table.push_back(std::make_unique<ComparisonOp>(torch, function, loop, Input{all, Values::any, false, 0, left},
                                                       Input{all, Values::any, false, 0, right}));
    }
    table.push_back(std::make_unique<NotOp>(Input{{9, 33}, Values::classes, false, 3}));
    table.push_back(std::make_unique<NotOp>(Input{{2, 16, 5, 3}, Values::any, false}));
    table.push_back(std::make_unique<NotOp>(Input{all, Values::any, false, 0, left}));

    const struct {
        Sizes c, a, b;
    } choices[] = {{{5, 7}, {5, 7}, {5, 7}},
                   {{3, 1, 5}, {4, 1}, {4, 5}},
                   {{6}, {2, 6}, {}},
                   {{67, 64}, {64}, {67, 64}},
                   {{3, 1, 4, 5}, {3, 32, 4, 5}, {3, 32, 1, 1}},
                   {{}, {7}, {7}}};
    for (const auto& [c, a, b] : choices)
        table.push_back(std::make_unique<ChoiceOp>(
            "torch.where(a > 0, b, c)", [](const std::vector<Tensor>& in) { return where(in[0] > 0, in[1], in[2]); }, c,
            a, b));
    const Sizes number{0};
    for (const auto& [c, a] : {std::pair{Sizes{5, 7}, Sizes{5, 7}}, {Sizes{7}, Sizes{5, 7}}, {Sizes{4, 8}, Sizes{8}}}) {
        auto fill = std::make_unique<ChoiceOp>(
            "b.masked_fill(a == 0, -7)",
            [](const std::vector<Tensor>& in) { return masked_fill(in[1], eq(in[0], 0), -7); }, c, a, number);
        fill->number = -7;
        table.push_back(std::move(fill));
        auto second = std::make_unique<ChoiceOp>(
            "torch.where(a > 0, b, 0.5)", [](const std::vector<Tensor>& in) { return where(in[0] > 0, in[1], 0.5); }, c,
            a, number);
        second->number = 0.5;
        table.push_back(std::move(second));
        auto first = std::make_unique<ChoiceOp>(
            "torch.where(a < 1, 0.5, b)", [](const std::vector<Tensor>& in) { return where(in[0] < 1, 0.5, in[1]); }, c,
            a, number);
        first->number = 0.5;
        table.push_back(std::move(first));
    }
}

}  // namespace lockstep::test
