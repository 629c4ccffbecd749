// Losses of the op table.
#include <fmt/format.h>

#include "lockstep/ops/loss.h"
#include "lockstep/tests/ops/op_table.h"

namespace lockstep::op_table {

namespace {

struct NllOp final : Op {
    NllOp(std::ptrdiff_t n, int c, bool with_weights, std::int64_t ignored, Reduction r, bool of_logits)
        : rows(n), classes(c), weights(with_weights), ignore_index(ignored), reduction(r), logits(of_logits) {}
    std::ptrdiff_t rows;
    int classes;
    bool weights;
    std::int64_t ignore_index;
    Reduction reduction;
    bool logits;

    std::string name() const override {
        return fmt::format("{} of {} rows, {} classes{}, ignoring {}, {}", logits ? "cross_entropy" : "nll_loss", rows,
                           classes, weights ? " with weights" : "", ignore_index,
                           reduction == Reduction::mean ? "mean" : "sum");
    }
    std::string torch() const override {
        return fmt::format("F.{}(a, b, weight={}, ignore_index={}, reduction='{}')",
                           logits ? "cross_entropy" : "nll_loss", weights ? "c" : "None", ignore_index,
                           reduction == Reduction::mean ? "mean" : "sum");
    }
    std::vector<Input> inputs() const override {
        return {{{rows, classes}}, {{rows}, Values::classes, false, classes}, {{classes}, Values::positive, false}};
    }
    Tensor run(const std::vector<Tensor>& in) const override {
        const NllOptions options{weights ? in[2] : Tensor(), ignore_index, reduction};
        return logits ? CrossEntropyLoss{options}(in[0], in[1]) : NllLoss{options}(in[0], in[1]);
    }
    Array reference(const std::vector<Array>& in) const override {
        const reference::Nll nll = reference::nll(logits ? reference::log_softmax(in[0], 1) : in[0], in[1],
                                                  weights ? in[2] : Array(), static_cast<double>(ignore_index));
        return Array(Sizes{}, reduction == Reduction::mean ? nll.numerator / nll.weight : nll.numerator);
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
};

}  // namespace

void add_losses(Table& table) {
    for (const Reduction reduction : {Reduction::mean, Reduction::sum})
        for (const bool logits : {false, true})
            for (const bool weights : {false, true}) {
                table.push_back(std::make_unique<NllOp>(13, 10, weights, -100, reduction, logits));
                table.push_back(std::make_unique<NllOp>(23, 3, weights, 1, reduction, logits));
                table.push_back(std::make_unique<NllOp>(1, 20, weights, -100, reduction, logits));
            }
    for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
        table.push_back(std::make_unique<MseOp>(Sizes{7, 3}, reduction));
        table.push_back(std::make_unique<MseOp>(Sizes{1}, reduction));
        table.push_back(std::make_unique<MseOp>(Sizes{2, 16, 3, 5}, reduction));
    }
}

}  // namespace lockstep::op_table
