// Losses of elements and rows in the op table.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/loss.h"
#include "lockstep/tests/ops/function_op.h"

namespace lockstep::test {

namespace {

/// A loss of pairs of elements, as mean and as sum.
void add_pairs(Table& table, const std::string& function, const std::string& options, const std::vector<Input>& inputs,
               const std::function<Loss(const std::vector<Tensor>&, Reduction)>& loss,
               const std::function<double(double, double)>& exact) {
    for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
        const char* word = reduction == Reduction::mean ? "mean" : "sum";
        add_function(
            table, "F." + function + "(" + options + "reduction='" + word + "')", inputs,
            [loss, reduction](const auto& in) { return loss(in, reduction).value(); },
            [exact, reduction](const std::vector<Array>& in) {
                double total = 0;
                for (std::ptrdiff_t i = 0; i < in[0].size(); ++i) total += exact(in[0][i], in[1][i]);
                const auto count = static_cast<double>(in[0].size());
                return Array(Sizes{}, reduction == Reduction::mean ? total / count : total);
            });
    }
}

double smooth(double d, double beta) { return d < beta ? d * d / (2 * beta) : d - beta / 2; }
double bernoulli(double x, double t) { return -(t * std::log(x) + (1 - t) * std::log(1 - x)); }

void add_element_pairs(Table& table) {
    const std::vector<Input> pair{{{4, 5}}, {{4, 5}}};
    add_pairs(
        table, "l1_loss", "a, b, ", pair, [](const auto& in, Reduction r) { return L1Loss{r}(in[0], in[1]); },
        [](double x, double t) { return std::abs(x - t); });
    add_pairs(
        table, "smooth_l1_loss", "a, b, beta=0.7, ", pair,
        [](const auto& in, Reduction r) {
            return SmoothL1Loss{0.7, r}(in[0], in[1]);
        },
        [](double x, double t) { return smooth(std::abs(x - t), 0.7); });
    add_pairs(
        table, "huber_loss", "a, b, delta=0.7, ", pair,
        [](const auto& in, Reduction r) {
            return HuberLoss{0.7, r}(in[0], in[1]);
        },
        [](double x, double t) { return 0.7 * smooth(std::abs(x - t), 0.7); });
    const std::vector<Input> positive{{{4, 5}, Values::positive}, {{4, 5}, Values::positive}};
    add_pairs(
        table, "binary_cross_entropy", "a / 3, b / 3, ", positive,
        [](const auto& in, Reduction r) { return BceLoss{{.reduction = r}}(in[0] / 3.0, in[1] / 3.0); },
        [](double x, double t) { return bernoulli(x / 3, t / 3); });
    add_pairs(
        table, "kl_div", "a, b, ", {{{4, 5}}, {{4, 5}, Values::positive}},
        [](const auto& in, Reduction r) {
            return KlDivLoss{{.reduction = r == Reduction::mean ? KlDivOptions::Reduction::mean
                                                                : KlDivOptions::Reduction::sum}}(in[0], in[1]);
        },
        [](double x, double t) { return t * (std::log(t) - x); });
    add_pairs(
        table, "poisson_nll_loss", "a, b * 2, full=True, ", {{{4, 5}}, {{4, 5}, Values::positive, false}},
        [](const auto& in, Reduction r) { return PoissonNllLoss{{.full = true, .reduction = r}}(in[0], in[1] * 2.0); },
        [](double x, double t) {
            const double count = 2 * t;
            const double more = count * std::log(count) - count + 0.5 * std::log(2 * std::numbers::pi * count);
            return std::exp(x) - count * x + (count > 1 ? more : 0);
        });
    add_pairs(
        table, "poisson_nll_loss", "a, b, log_input=False, eps=0.01, ", positive,
        [](const auto& in, Reduction r) {
            return PoissonNllLoss{{.log_input = false, .eps = 0.01, .reduction = r}}(in[0], in[1]);
        },
        [](double x, double t) { return x - t * std::log(x + 0.01); });
    std::vector<double> either(20);
    for (std::size_t i = 0; i < either.size(); ++i) either[i] = i % 3 == 0 ? 1 : -1;
    const std::vector<Input> signs{{{4, 5}}, {.shape = {4, 5}, .gradient = false, .exact = either}};
    add_pairs(
        table, "hinge_embedding_loss", "a, b, margin=0.7, ", signs,
        [](const auto& in, Reduction r) { return HingeEmbeddingLoss{{.margin = 0.7, .reduction = r}}(in[0], in[1]); },
        [](double x, double t) { return t == 1 ? x : std::max(0.0, 0.7 - x); });
    add_pairs(
        table, "soft_margin_loss", "a, b, ", signs,
        [](const auto& in, Reduction r) { return SoftMarginLoss{r}(in[0], in[1]); },
        [](double x, double t) { return std::log1p(std::exp(-t * x)); });
    add_function(
        table, "F.margin_ranking_loss(a, b, c, margin=0.4)",
        {{{4, 5}}, {{4, 5}}, {.shape = {4, 5}, .gradient = false, .exact = either}},
        [](const auto& in) { return MarginRankingLoss{{.margin = 0.4}}(in[0], in[1], in[2]).value(); },
        [](const std::vector<Array>& in) {
            double total = 0;
            for (std::ptrdiff_t i = 0; i < 20; ++i) total += std::max(0.0, 0.4 - in[2][i] * (in[0][i] - in[1][i])) / 20;
            return Array(Sizes{}, total);
        });
    std::vector<double> chosen(20);
    for (std::size_t i = 0; i < chosen.size(); ++i) chosen[i] = i % 3 == 0 ? 1 : 0;
    for (const bool mean : {true, false})
        add_function(
            table, std::string("F.multilabel_soft_margin_loss(a, b, reduction='") + (mean ? "mean" : "sum") + "')",
            {{{4, 5}}, {.shape = {4, 5}, .gradient = false, .exact = chosen}},
            [mean](const auto& in) {
                return MultiLabelSoftMarginLoss{mean ? Reduction::mean : Reduction::sum}(in[0], in[1]).value();
            },
            [mean](const std::vector<Array>& in) {
                double total = 0;
                for (std::ptrdiff_t i = 0; i < 20; ++i)
                    total += std::log1p(std::exp(in[1][i] == 1 ? -in[0][i] : in[0][i])) / 5;
                return Array(Sizes{}, mean ? total / 4 : total);
            });
    add_function(
        table, "F.multi_margin_loss(a, b, margin=0.8)", {{{6, 4}}, {{6}, Values::classes, false, 4}},
        [](const auto& in) { return MultiMarginLoss{{.margin = 0.8}}(in[0], in[1]).value(); },
        [](const std::vector<Array>& in) {
            double total = 0;
            for (std::ptrdiff_t i = 0; i < 24; ++i) {
                const auto own = static_cast<std::ptrdiff_t>(in[1][i / 4]);
                if (i % 4 != own) total += std::max(0.0, 0.8 - in[0][i / 4 * 4 + own] + in[0][i]) / 24;
            }
            return Array(Sizes{}, total);
        });
    const std::vector<double> some_classes{2, 0, -1, 1, 3, -1, 1, 0, 3, 2};  // those after -1 do not count
    add_function(
        table, "F.multilabel_margin_loss(a, b)", {{{2, 5}}, {{2, 5}, Values::classes, false, 5, some_classes}},
        [](const auto& in) { return multilabel_margin_loss(in[0], in[1]).value(); },
        [=](const std::vector<Array>& in) {
            double total = 0;
            for (std::size_t row = 0; row < 2; ++row) {
                std::vector<bool> own(5, false);
                std::vector<std::size_t> targets;
                for (std::size_t i = 0; i < 5 && some_classes[row * 5 + i] >= 0; ++i) {
                    targets.push_back(static_cast<std::size_t>(some_classes[row * 5 + i]));
                    own[targets.back()] = true;
                }
                const auto score = [&](std::size_t i) { return in[0][static_cast<std::ptrdiff_t>(row * 5 + i)]; };
                for (const std::size_t target : targets)
                    for (std::size_t i = 0; i < 5; ++i)
                        if (!own[i]) total += std::max(0.0, 1 - score(target) + score(i)) / 10;
            }
            return Array(Sizes{}, total);
        });
    for (const bool swap : {false, true})
        add_function(
            table,
            std::string("F.triplet_margin_with_distance_loss(a, b, c, margin=0.7, "
                        "distance_function=lambda x, y: (x - y).abs().sum(1), swap=") +
                (swap ? "True)" : "False)"),
            {{{4, 3}}, {{4, 3}}, {{4, 3}}},
            [swap](const auto& in) {
                return triplet_margin_with_distance_loss(
                           in[0], in[1], in[2], [](const Tensor& x, const Tensor& y) { return sum(abs(x - y), 1); },
                           {.margin = 0.7, .swap = swap})
                    .value();
            },
            [swap](const std::vector<Array>& in) {
                double total = 0;
                for (std::ptrdiff_t row = 0; row < 4; ++row) {
                    const auto between = [&](std::size_t a, std::size_t b) {
                        double sum = 0;
                        for (std::ptrdiff_t i = row * 3; i < row * 3 + 3; ++i) sum += std::abs(in[a][i] - in[b][i]);
                        return sum;
                    };
                    const double far = swap ? std::min(between(0, 2), between(1, 2)) : between(0, 2);
                    total += std::max(0.0, between(0, 1) - far + 0.7) / 4;
                }
                return Array(Sizes{}, total);
            });
    add_function(
        table, "F.kl_div(a, b, reduction='batchmean', log_target=True)", pair,
        [](const auto& in) {
            const KlDivOptions options{.log_target = true, .reduction = KlDivOptions::Reduction::batchmean};
            return KlDivLoss{options}(in[0], in[1]).value();
        },
        [](const std::vector<Array>& in) {
            double total = 0;
            for (std::ptrdiff_t i = 0; i < in[0].size(); ++i) total += std::exp(in[1][i]) * (in[1][i] - in[0][i]);
            return Array(Sizes{}, total / 4);
        });
    add_function(
        table, "F.gaussian_nll_loss(a, b, c, full=True)", {{{4, 5}}, {{4, 5}}, {{4, 5}, Values::positive}},
        [](const auto& in) { return GaussianNllLoss{{.full = true}}(in[0], in[1], in[2]).value(); },
        [](const std::vector<Array>& in) {
            double total = 0;
            for (std::ptrdiff_t i = 0; i < 20; ++i)
                total += 0.5 * (std::log(in[2][i]) + std::pow(in[0][i] - in[1][i], 2) / in[2][i] +
                                std::log(2 * std::numbers::pi));
            return Array(Sizes{}, total / 20);
        });
}

double product(const Array& a, const Array& b, std::ptrdiff_t row, std::ptrdiff_t size) {
    double sum = 0;
    for (std::ptrdiff_t i = row * size; i < (row + 1) * size; ++i) sum += a[i] * b[i];
    return sum;
}
double distance(const Array& a, const Array& b, std::ptrdiff_t row, std::ptrdiff_t size) {
    double sum = 0;
    for (std::ptrdiff_t i = row * size; i < (row + 1) * size; ++i) sum += std::pow(a[i] - b[i] + 1e-6, 2);
    return std::sqrt(sum);
}

void add_row_losses(Table& table) {
    const std::vector<double> signs{1, -1, 1, -1, -1};
    add_function(
        table, "F.cosine_embedding_loss(a, b, c, margin=0.1)",
        {{{5, 4}}, {{5, 4}}, {.shape = {5}, .gradient = false, .exact = signs}},
        [](const auto& in) { return CosineEmbeddingLoss{{.margin = 0.1}}(in[0], in[1], in[2]).value(); },
        [](const std::vector<Array>& in) {
            double total = 0;
            for (std::ptrdiff_t i = 0; i < 5; ++i) {
                const double lengths = product(in[0], in[0], i, 4) * product(in[1], in[1], i, 4);
                const double cosine = product(in[0], in[1], i, 4) / std::sqrt(lengths);
                total += in[2][i] == 1 ? 1 - cosine : std::max(0.0, cosine - 0.1);
            }
            return Array(Sizes{}, total / 5);
        });
    for (const bool swap : {false, true})
        add_function(
            table, swap ? "F.triplet_margin_loss(a, b, c, margin=2.0, swap=True)" : "F.triplet_margin_loss(a, b, c)",
            {{{6, 4}}, {{6, 4}}, {{6, 4}}},
            [swap](const auto& in) {
                return TripletMarginLoss{{.margin = swap ? 2.0 : 1.0, .swap = swap}}(in[0], in[1], in[2]).value();
            },
            [swap](const std::vector<Array>& in) {
                double total = 0;
                for (std::ptrdiff_t i = 0; i < 6; ++i) {
                    double far = distance(in[0], in[2], i, 4);
                    if (swap) far = std::min(far, distance(in[1], in[2], i, 4));
                    total += std::max(0.0, distance(in[0], in[1], i, 4) - far + (swap ? 2 : 1));
                }
                return Array(Sizes{}, total / 6);
            });

    // Class 2 is ignored where it is the target.
    for (const bool weighted : {false, true}) {
        const std::string weight = weighted ? "c" : "None";
        add_function(
            table, "F.cross_entropy(a, b, weight=" + weight + ", ignore_index=2, label_smoothing=0.3)",
            {{{7, 4}}, {{7}, Values::classes, false, 4}, {{4}, Values::positive, false}},
            [weighted](const auto& in) {
                return CrossEntropyLoss{
                    {.weight = weighted ? in[2] : Tensor(), .ignore_index = 2, .label_smoothing = 0.3}}(in[0], in[1])
                    .value();
            },
            [weighted](const std::vector<Array>& in) {
                const Array logarithms = reference::log_softmax(in[0], 1);
                const auto weight_of = [&](std::ptrdiff_t c) { return weighted ? in[2][c] : 1; };
                double total = 0, count = 0;
                for (std::ptrdiff_t i = 0; i < 7; ++i) {
                    const auto target = static_cast<std::ptrdiff_t>(in[1][i]);
                    if (target == 2) continue;
                    count += weight_of(target);
                    total -= 0.7 * weight_of(target) * logarithms[4 * i + target];
                    for (std::ptrdiff_t c = 0; c < 4; ++c) total -= 0.3 / 4 * weight_of(c) * logarithms[4 * i + c];
                }
                return Array(Sizes{}, total / count);
            });
    }
}

void add_probability_targets(Table& table) {
    for (const bool weighted : {false, true})
        for (const char* reduction : {"mean", "sum"}) {
            const bool mean = reduction == std::string("mean");
            const double smoothing = weighted ? 0.3 : 0;
            add_function(
                table,
                fmt::format("F.cross_entropy(a, b, weight={}, label_smoothing={}, reduction='{}')",
                            weighted ? "c" : "None", smoothing, reduction),
                {{{3, 4, 2}}, {{3, 4, 2}, Values::positive}, {{4}, Values::positive, false}},
                [=](const auto& in) {
                    return CrossEntropyLoss{{.weight = weighted ? in[2] : Tensor(),
                                             .reduction = mean ? Reduction::mean : Reduction::sum,
                                             .label_smoothing = smoothing}}(in[0], in[1])
                        .value();
                },
                [=](const std::vector<Array>& in) {
                    const Array logarithms = reference::log_softmax(in[0], 1);
                    double total = 0;
                    for (std::ptrdiff_t i = 0; i < logarithms.size(); ++i) {
                        const double target = in[1][i] * (1 - smoothing) + smoothing / 4;
                        total -= (weighted ? in[2][i / 2 % 4] : 1) * target * logarithms[i];
                    }
                    return Array(Sizes{}, mean ? total / 6 : total);
                });
        }
}

/// The loss of a row of log-probabilities (T, C), by sums of probabilities over the positions.
double ctc_of_row(const std::function<double(std::ptrdiff_t, std::ptrdiff_t)>& logarithm, std::ptrdiff_t length,
                  const std::vector<std::ptrdiff_t>& labels) {
    std::vector<std::ptrdiff_t> states{0};
    for (const std::ptrdiff_t label : labels) states.insert(states.end(), {label, 0});
    std::vector<double> paths(states.size(), 0.0);
    for (std::size_t s = 0; s < std::min<std::size_t>(2, states.size()); ++s)
        paths[s] = std::exp(logarithm(0, states[s]));
    for (std::ptrdiff_t t = 1; t < length; ++t) {
        std::vector<double> next(states.size());
        for (std::size_t s = 0; s < states.size(); ++s) {
            double from = paths[s] + (s > 0 ? paths[s - 1] : 0);
            if (s > 1 && states[s] != 0 && states[s] != states[s - 2]) from += paths[s - 2];
            next[s] = from * std::exp(logarithm(t, states[s]));
        }
        paths = next;
    }
    return -std::log(paths.back() + (states.size() > 1 ? paths[paths.size() - 2] : 0));
}

void add_ctc(Table& table) {
    constexpr std::ptrdiff_t rows = 3, length = 6, classes = 4, most = 3;
    const auto numbers = [](const Sizes& shape, std::vector<double> exact) {
        return Input{shape, Values::classes, false, length + 1, std::move(exact)};
    };
    const std::vector<Input> inputs{{{rows, length, classes}},
                                    numbers({rows, most}, {1, 1, 2, 3, 2, 1, 2, 0, 0}),
                                    numbers({rows}, {6, 4, 3}),
                                    numbers({rows}, {3, 2, 0})};
    for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
        const std::string word = reduction == Reduction::mean ? "mean" : "sum";
        add_function(
            table, "F.ctc_loss(a.log_softmax(2).transpose(0, 1), b, c, d, reduction='" + word + "')", inputs,
            [reduction](const auto& in) {
                const CtcLoss loss{{.reduction = reduction}};
                return loss(log_softmax(in[0], 2), in[1], in[2], in[3]).value();
            },
            [reduction](const std::vector<Array>& in) {
                const Array logarithms = reference::log_softmax(in[0], 2);
                double total = 0;
                for (std::ptrdiff_t n = 0; n < rows; ++n) {
                    std::vector<std::ptrdiff_t> labels;
                    for (std::ptrdiff_t s = 0; s < static_cast<std::ptrdiff_t>(in[3][n]); ++s)
                        labels.push_back(static_cast<std::ptrdiff_t>(in[1][n * most + s]));
                    const double cost = ctc_of_row(
                        [&](std::ptrdiff_t t, std::ptrdiff_t c) { return logarithms[(n * length + t) * classes + c]; },
                        static_cast<std::ptrdiff_t>(in[2][n]), labels);
                    total += reduction == Reduction::mean ? cost / std::max(1.0, in[3][n]) / rows : cost;
                }
                return Array(Sizes{}, total);
            });
    }
}

/// Losses without reduction.
void add_unreduced(Table& table) {
    const std::vector<Input> pair{{{4, 5}}, {{4, 5}}};
    const auto elements = [](double (*exact)(double, double)) {
        return [exact](const std::vector<Array>& in) { return reference::combine(in[0], in[1], exact); };
    };
    add_function(
        table, "F.mse_loss(a, b, reduction='none')", pair,
        [](const auto& in) { return mse_loss.elements(in[0], in[1]); },
        elements([](double x, double t) { return (x - t) * (x - t); }))
        .batch_inputs = {true, true};
    add_function(
        table, "F.smooth_l1_loss(a, b, reduction='none', beta=0.7)", pair,
        [](const auto& in) { return SmoothL1Loss{0.7}.elements(in[0], in[1]); },
        elements([](double x, double t) { return smooth(std::abs(x - t), 0.7); }))
        .batch_inputs = {true, true};
    add_function(
        table, "F.binary_cross_entropy_with_logits(a, b / 3, reduction='none')",
        {{{4, 5}}, {{4, 5}, Values::positive, false}},
        [](const auto& in) { return binary_cross_entropy_with_logits.elements(in[0], in[1] / 3); },
        elements([](double x, double t) { return std::log1p(std::exp(x)) - x * t / 3; }))
        .batch_inputs = {true, true};
    // Classes of which the second is ignored, with weights and smoothed labels.
    for (const double smoothing : {0.0, 0.25})
        add_function(
            table,
            fmt::format("F.cross_entropy(a, b, weight=c, ignore_index=1, label_smoothing={}, reduction='none')",
                        smoothing),
            {{{5, 3, 2}}, {{5, 2}, Values::classes, false, 3}, {{3}, Values::positive, false}},
            [smoothing](const auto& in) {
                const CrossEntropyLoss loss{{.weight = in[2], .ignore_index = 1, .label_smoothing = smoothing}};
                return loss.elements(in[0], in[1]);
            },
            [smoothing](const std::vector<Array>& in) {
                Array y(Sizes{5, 2});
                for (std::ptrdiff_t i = 0; i < 10; ++i) {
                    const auto own = static_cast<std::ptrdiff_t>(in[1][i]);
                    if (own == 1) continue;
                    const auto logit = [&](std::ptrdiff_t c) { return in[0][(i / 2 * 3 + c) * 2 + i % 2]; };
                    const double all = std::log(std::exp(logit(0)) + std::exp(logit(1)) + std::exp(logit(2)));
                    y[i] = (1 - smoothing) * in[2][own] * (all - logit(own));
                    for (std::ptrdiff_t c = 0; c < 3; ++c) y[i] += smoothing / 3 * in[2][c] * (all - logit(c));
                }
                return y;
            })
            .batch_inputs = {true, true, false};
}

}  // namespace

void add_element_losses(Table& table) {
    add_unreduced(table);
    add_element_pairs(table);
    add_row_losses(table);
    add_probability_targets(table);
    add_ctc(table);
}

}  // namespace lockstep::test
