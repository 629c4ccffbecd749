// Losses of the op table.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "lockstep/ops/dice.h"
#include "lockstep/ops/loss.h"
#include "lockstep/tests/ops/op_table.h"

namespace lockstep::test {

namespace {

struct NllOp final : Op {
    NllOp(std::ptrdiff_t n, int c, bool with_weights, std::int64_t ignored, Reduction r, bool of_logits, Sizes m = {})
        : rows(n),
          classes(c),
          map(std::move(m)),
          weights(with_weights),
          ignore_index(ignored),
          reduction(r),
          logits(of_logits) {}
    std::ptrdiff_t rows;
    int classes;
    Sizes map;  ///< height, width, ... of each row; empty: a class for every row
    bool weights;
    std::int64_t ignore_index;
    Reduction reduction;
    bool logits;

    std::string name() const override {
        return fmt::format("{} of {} rows{}, {} classes{}, ignoring {}, {}", logits ? "cross_entropy" : "nll_loss",
                           rows, map.empty() ? "" : fmt::format(" of ({})", fmt::join(map, ", ")), classes,
                           weights ? " with weights" : "", ignore_index, reduction == Reduction::mean ? "mean" : "sum");
    }
    std::string torch() const override {
        return fmt::format("F.{}(a, b, weight={}, ignore_index={}, reduction='{}')",
                           logits ? "cross_entropy" : "nll_loss", weights ? "c" : "None", ignore_index,
                           reduction == Reduction::mean ? "mean" : "sum");
    }
    std::vector<Input> inputs() const override {
        Sizes input{rows, classes}, target{rows};
        input.insert(input.end(), map.begin(), map.end());
        target.insert(target.end(), map.begin(), map.end());
        return {{input}, {target, Values::classes, false, classes}, {{classes}, Values::positive, false}};
    }
    Tensor run(const std::vector<Tensor>& in) const override {
        const NllOptions options{weights ? in[2] : Tensor(), ignore_index, reduction};
        return logits ? CrossEntropyLoss{{options.weight, options.ignore_index, options.reduction}}(in[0], in[1])
                      : NllLoss{options}(in[0], in[1]);
    }
    Array reference(const std::vector<Array>& in) const override {
        const reference::Nll nll = reference::nll(logits ? reference::log_softmax(in[0], 1) : in[0], in[1],
                                                  weights ? in[2] : Array(), static_cast<double>(ignore_index));
        return Array(Sizes{}, reduction == Reduction::mean ? nll.numerator / nll.weight : nll.numerator);
    }
    std::vector<Array> reference_gradients(const std::vector<Array>& in, const Array& dy) const override {
        const Array logarithms = reference::log_softmax(in[0], 1);
        const double weight =
            reference::nll(in[0], in[1], weights ? in[2] : Array(), static_cast<double>(ignore_index)).weight;
        const double share = reduction == Reduction::mean ? dy[0] / weight : dy[0];
        const std::ptrdiff_t positions = in[1].size() / rows;
        Array dx(in[0].shape);
        for (std::ptrdiff_t i = 0; i < in[1].size(); ++i) {
            const auto target = static_cast<std::ptrdiff_t>(in[1][i]);
            if (target == ignore_index) continue;
            const double gradient = -share * (weights ? in[2][target] : 1);
            const std::ptrdiff_t first = i / positions * classes * positions + i % positions;
            dx[first + target * positions] = gradient;
            for (std::ptrdiff_t c = 0; logits && c < classes; ++c)
                dx[first + c * positions] -= gradient * std::exp(logarithms[first + c * positions]);
        }
        return {dx, Array(), Array()};
    }
};

struct BceOp final : Op {
    BceOp(Sizes s, Sizes of_weight, Sizes of_pos_weight, Reduction r)
        : shape(std::move(s)), weight(std::move(of_weight)), pos_weight(std::move(of_pos_weight)), reduction(r) {}
    Sizes shape, weight, pos_weight;  ///< empty: none
    Reduction reduction;

    std::string name() const override {
        return fmt::format("binary_cross_entropy_with_logits of {} dimensions{}{}, {}", shape.size(),
                           weight.empty() ? "" : " with weights", pos_weight.empty() ? "" : " with pos_weight",
                           reduction == Reduction::mean ? "mean" : "sum");
    }
    std::string torch() const override {
        return fmt::format("F.binary_cross_entropy_with_logits(a, b, weight={}, pos_weight={}, reduction='{}')",
                           weight.empty() ? "None" : "c", pos_weight.empty() ? "None" : "d",
                           reduction == Reduction::mean ? "mean" : "sum");
    }
    std::vector<Input> inputs() const override {
        const Sizes one{1};
        return {{shape},
                {shape, Values::positive},
                {weight.empty() ? one : weight, Values::positive, false},
                {pos_weight.empty() ? one : pos_weight, Values::positive, false}};
    }
    Tensor run(const std::vector<Tensor>& in) const override {
        return BceWithLogitsLoss{{.weight = weight.empty() ? Tensor() : in[2],
                                  .pos_weight = pos_weight.empty() ? Tensor() : in[3],
                                  .reduction = reduction}}(in[0], in[1]);
    }
    Array reference(const std::vector<Array>& in) const override {
        const Array likely = reference::map(in[0], [](double x) { return -std::log1p(std::exp(-x)); });
        const Array unlikely = reference::map(in[0], [](double x) { return -std::log1p(std::exp(x)); });
        Array e = reference::combine(in[1], likely, [](double t, double l) { return -t * l; });
        if (!pos_weight.empty()) e = reference::combine(e, in[3], [](double x, double w) { return x * w; });
        const Array rest = reference::combine(in[1], unlikely, [](double t, double l) { return -(1 - t) * l; });
        e = reference::combine(e, rest, [](double a, double b) { return a + b; });
        if (!weight.empty()) e = reference::combine(e, in[2], [](double x, double w) { return x * w; });
        Array y(Sizes{});
        for (const double value : e.v) y[0] += value;
        if (reduction == Reduction::mean) y[0] /= static_cast<double>(e.size());
        return y;
    }
};

/// Dice of probabilities or arbitrary numbers: targets are masks or classes.
struct DiceOp final : Op {
    DiceOp(Sizes s, bool of_classes, const DiceOptions& o) : shape(std::move(s)), classes(of_classes), options(o) {}
    Sizes shape;
    bool classes;
    DiceOptions options;

    std::string name() const override {
        return fmt::format("dice_loss of ({}), targets are {}, over {}{}", fmt::join(shape, ", "),
                           classes ? "classes" : "masks", options.over == DiceOver::image ? "images" : "the batch",
                           options.include_background ? "" : ", without background");
    }
    /// The formulas in PyTorch operations, because PyTorch has no such function.
    std::string torch() const override {
        const std::string target = !classes        ? "b"
                                   : shape[1] == 1 ? "b.unsqueeze(1).double()"
                                                   : fmt::format("F.one_hot(b, {}).permute(0, 3, 1, 2)", shape[1]);
        const char* dims = options.over == DiceOver::image ? "(2, 3)" : "(0, 2, 3)";
        return fmt::format(
            "1 - ((2 * (a * {0}).sum({1}) + {2}) / (a.sum({1}) + ({0}).sum({1}) + {2}))[..., {3}:].mean()", target,
            dims, options.epsilon, options.include_background ? 0 : 1);
    }
    std::vector<Input> inputs() const override {
        const Input masks{shape, Values::positive};
        const Input numbers{
            {shape[0], shape[2], shape[3]}, Values::classes, false, shape[1] == 1 ? 2 : static_cast<int>(shape[1])};
        return {{shape, Values::positive}, classes ? numbers : masks};
    }
    Tensor run(const std::vector<Tensor>& in) const override { return DiceLoss{options}(in[0], in[1]); }
    Array reference(const std::vector<Array>& in) const override {
        const std::ptrdiff_t positions = shape[2] * shape[3], groups = options.over == DiceOver::image ? shape[0] : 1;
        const auto target = [&](std::ptrdiff_t n, std::ptrdiff_t c, std::ptrdiff_t i) {
            if (!classes) return in[1][(n * shape[1] + c) * positions + i];
            const double number = in[1][n * positions + i];
            return shape[1] == 1 ? number : number == static_cast<double>(c) ? 1.0 : 0.0;
        };
        Array y(Sizes{}, 1);
        const std::ptrdiff_t first = options.include_background ? 0 : 1;
        for (std::ptrdiff_t group = 0; group < groups; ++group)
            for (std::ptrdiff_t c = first; c < shape[1]; ++c) {
                double common = 0, both = 0;
                for (std::ptrdiff_t n = 0; n < shape[0]; ++n) {
                    if (groups > 1 && n != group) continue;
                    for (std::ptrdiff_t i = 0; i < positions; ++i) {
                        const double a = in[0][(n * shape[1] + c) * positions + i], b = target(n, c, i);
                        common += a * b;
                        both += a + b;
                    }
                }
                y[0] -= (2 * common + options.epsilon) / (both + options.epsilon) /
                        static_cast<double>(groups * (shape[1] - first));
            }
        return y;
    }
};

struct MseOp final : Op {
    MseOp(Sizes s, Reduction r) : shape(std::move(s)), reduction(r) {}
    Sizes shape;
    Reduction reduction;

    std::string name() const override {
        return fmt::format("mse_loss of {} dimensions, {}", shape.size(),
                           reduction == Reduction::mean ? "mean" : "sum");
    }
    std::string torch() const override {
        return fmt::format("F.mse_loss(a, b, reduction='{}')", reduction == Reduction::mean ? "mean" : "sum");
    }
    std::vector<Input> inputs() const override { return {{shape}, {shape}}; }
    Tensor run(const std::vector<Tensor>& in) const override { return MseLoss{reduction}(in[0], in[1]); }
    Array reference(const std::vector<Array>& in) const override {
        Array y(Sizes{});
        for (std::ptrdiff_t i = 0; i < in[0].size(); ++i) y[0] += (in[0][i] - in[1][i]) * (in[0][i] - in[1][i]);
        if (reduction == Reduction::mean) y[0] /= static_cast<double>(in[0].size());
        return y;
    }
    std::vector<Array> reference_gradients(const std::vector<Array>& in, const Array& dy) const override {
        const double share = 2 * dy[0] / (reduction == Reduction::mean ? static_cast<double>(in[0].size()) : 1);
        return {reference::combine(in[0], in[1], [share](double a, double b) { return share * (a - b); }),
                reference::combine(in[0], in[1], [share](double a, double b) { return share * (b - a); })};
    }
};

}  // namespace

void add_losses(Table& table) {
    for (const Reduction reduction : {Reduction::mean, Reduction::sum})
        for (const bool logits : {false, true})
            for (const bool weights : {false, true}) {
                table.push_back(std::make_unique<NllOp>(13, 10, weights, -100, reduction, logits));
                table.push_back(std::make_unique<NllOp>(23, 3, weights, 1, reduction, logits));
                table.push_back(std::make_unique<NllOp>(1, 20, weights, -100, reduction, logits));
                table.push_back(std::make_unique<NllOp>(2, 3, weights, 1, reduction, logits, Sizes{5, 4}));
                table.push_back(std::make_unique<NllOp>(2, 16, weights, -100, reduction, logits, Sizes{3, 5}));
                table.push_back(std::make_unique<NllOp>(3, 2, weights, -100, reduction, logits, Sizes{7}));
                // Sums by blocks, in parts.
                table.push_back(std::make_unique<NllOp>(9000, 2, weights, 1, reduction, logits));
            }
    for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
        table.push_back(std::make_unique<BceOp>(Sizes{4, 3}, Sizes{}, Sizes{}, reduction));
        table.push_back(std::make_unique<BceOp>(Sizes{2, 16, 3, 5}, Sizes{}, Sizes{16, 1, 1}, reduction));
        table.push_back(std::make_unique<BceOp>(Sizes{2, 1, 3, 5}, Sizes{3, 5}, Sizes{1}, reduction));
        table.push_back(std::make_unique<MseOp>(Sizes{7, 3}, reduction));
        table.push_back(std::make_unique<MseOp>(Sizes{1}, reduction));
        table.push_back(std::make_unique<MseOp>(Sizes{2, 16, 3, 5}, reduction));
        table.push_back(std::make_unique<MseOp>(Sizes{2, 4500}, reduction));
    }
    for (const DiceOver over : {DiceOver::batch, DiceOver::image})
        for (const bool classes : {false, true}) {
            table.push_back(std::make_unique<DiceOp>(Sizes{2, 3, 4, 5}, classes, DiceOptions{over, true}));
            table.push_back(std::make_unique<DiceOp>(
                Sizes{2, 3, 4, 5}, classes, DiceOptions{.over = over, .include_background = false, .epsilon = 0.5}));
            table.push_back(
                std::make_unique<DiceOp>(Sizes{3, 1, 2, 5}, classes, DiceOptions{.over = over, .epsilon = 0.25}));
            table.push_back(std::make_unique<DiceOp>(Sizes{2, 16, 3, 5}, classes, DiceOptions{over, true}));
        }
}

}  // namespace lockstep::test
