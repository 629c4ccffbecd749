// Activations, normalisations and average pooling in the op table.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/gate_operations.h"
#include "lockstep/tests/ops/function_op.h"

namespace lockstep::test {

namespace {

double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }
double limited(double x, double low, double high) { return std::min(std::max(x, low), high); }

void add_activations(Table& table) {
    const auto add = [&table](const char* torch, Tensor (*function)(const Tensor&), double (*exact)(double)) {
        add_function(
            table, torch, {{{3, 17}}}, [function](const auto& in) { return function(in[0]); },
            [exact](const std::vector<Array>& in) { return reference::map(in[0], exact); })
            .elementwise = true;
    };
    add(
        "F.softplus(a)", [](const Tensor& x) { return softplus(x); }, [](double x) { return std::log1p(std::exp(x)); });
    add(
        "F.softplus(a, 2.0, 3.0)", [](const Tensor& x) { return softplus(x, 2, 3); },
        [](double x) { return 2 * x > 3 ? x : std::log1p(std::exp(2 * x)) / 2; });
    add(
        "F.elu(a, 0.7)", [](const Tensor& x) { return elu(x, 0.7); },
        [](double x) { return x > 0 ? x : 0.7 * std::expm1(x); });
    add(
        "F.celu(a, 0.5)", [](const Tensor& x) { return celu(x, 0.5); },
        [](double x) { return x > 0 ? x : 0.5 * std::expm1(x / 0.5); });
    add("F.selu(a)", selu,
        [](double x) { return 1.0507009873554804934 * (x > 0 ? x : 1.6732632423543772848 * std::expm1(x)); });
    add(
        "F.hardtanh(a, -0.5, 1.2)", [](const Tensor& x) { return hardtanh(x, -0.5, 1.2); },
        [](double x) { return limited(x, -0.5, 1.2); });
    add(
        "F.relu6(a * 4)", [](const Tensor& x) { return relu6(x * 4.0); },
        [](double x) { return limited(4 * x, 0, 6); });
    add(
        "F.hardsigmoid(a * 2)", [](const Tensor& x) { return hardsigmoid(x * 2.0); },
        [](double x) { return limited(2 * x + 3, 0, 6) / 6; });
    add(
        "F.hardswish(a * 2)", [](const Tensor& x) { return hardswish(x * 2.0); },
        [](double x) { return 2 * x * limited(2 * x + 3, 0, 6) / 6; });
    add("F.mish(a)", mish, [](double x) { return x * std::tanh(std::log1p(std::exp(x))); });
    add("F.softsign(a)", softsign, [](double x) { return x / (1 + std::abs(x)); });

    const auto prelu_of = [](const std::vector<Array>& in) {
        Array y(in[0].shape);
        const std::ptrdiff_t channels = in[1].size(), inner = in[0].size() / (in[0].shape[0] * in[0].shape[1]);
        for (std::ptrdiff_t i = 0; i < y.size(); ++i)
            y[i] = in[0][i] > 0 ? in[0][i] : in[0][i] * in[1][channels == 1 ? 0 : i / inner % channels];
        return y;
    };
    const auto run_prelu = [](const auto& in) { return prelu(in[0], in[1]); };
    add_function(table, "F.prelu(a, b)", {{{3, 4, 5}}, {{4}}}, run_prelu, prelu_of);
    add_function(table, "F.prelu(a, b)", {{{3, 6}}, {{1}}}, run_prelu, prelu_of);
    for (const Sizes& shape : {Sizes{3, 8, 2}, Sizes{1, 520}})
        add_function(
            table, "F.glu(a, 1)", {{shape}}, [](const auto& in) { return glu(in[0], 1); },
            [](const std::vector<Array>& in) {
                Sizes halves = in[0].shape;
                halves[1] /= 2;
                Array y(halves);
                const std::ptrdiff_t half = y.size() / halves[0];
                for (std::ptrdiff_t i = 0; i < y.size(); ++i) {
                    const std::ptrdiff_t first = i / half * 2 * half + i % half;
                    y[i] = in[0][first] * sigmoid_of(in[0][first + half]);
                }
                return y;
            });
}

/// Products of the input or the state for each gate of one element.
using OfGates = std::vector<double>;

double lstm_cell_of(const OfGates& x, const OfGates& h, double before) {
    return sigmoid_of(x[1] + h[1]) * before + sigmoid_of(x[0] + h[0]) * std::tanh(x[2] + h[2]);
}
double lstm_hidden_of(const OfGates& x, const OfGates& h, double before) {
    return sigmoid_of(x[3] + h[3]) * std::tanh(lstm_cell_of(x, h, before));
}
double gru_hidden_of(const OfGates& x, const OfGates& h, double before) {
    const double made = std::tanh(x[2] + sigmoid_of(x[0] + h[0]) * h[2]), update = sigmoid_of(x[1] + h[1]);
    return (1 - update) * made + update * before;
}

/// Steps of recurrent layers from the products of input and state, (3, gates * 5) each, and a state (3, 5).
void add_recurrent_cells(Table& table) {
    const auto add = [&table](std::string torch, std::ptrdiff_t gates, Tensor (*run)(const std::vector<Tensor>&),
                              double (*exact)(const OfGates& of_x, const OfGates& of_state, double before)) {
        add_function(table, std::move(torch), {{{3, 5 * gates}}, {{3, 5 * gates}}, {{3, 5}}}, run,
                     [gates, exact](const std::vector<Array>& in) {
                         Array y(Sizes{3, 5});
                         for (std::ptrdiff_t i = 0; i < y.size(); ++i) {
                             OfGates of_x, of_state;
                             for (std::ptrdiff_t gate = 0; gate < gates; ++gate) {
                                 const std::ptrdiff_t at = (i / 5 * gates + gate) * 5 + i % 5;
                                 of_x.push_back(in[0][at]);
                                 of_state.push_back(in[1][at]);
                             }
                             y[i] = exact(of_x, of_state, in[2][i]);
                         }
                         return y;
                     })
            .batch_inputs = {true, true, true};
    };
    const std::string cell =
        "(torch.sigmoid((a + b)[:, 5:10]) * c + torch.sigmoid((a + b)[:, :5]) * torch.tanh((a + b)[:, 10:15]))";
    const std::string hidden = "torch.sigmoid((a + b)[:, 15:]) * torch.tanh(" + cell + ")";
    add(
        cell, 4, [](const std::vector<Tensor>& in) { return lstm_cell(in[0], in[1], in[2]).cell; }, lstm_cell_of);
    add(
        hidden, 4, [](const std::vector<Tensor>& in) { return lstm_cell(in[0], in[1], in[2]).hidden; }, lstm_hidden_of);
    add(
        cell + " - " + hidden, 4,
        [](const std::vector<Tensor>& in) {
            const CellStep after = lstm_cell(in[0], in[1], in[2]);
            return after.cell - after.hidden;
        },
        [](const OfGates& x, const OfGates& h, double before) {
            return lstm_cell_of(x, h, before) - lstm_hidden_of(x, h, before);
        });
    const std::string next = "torch.tanh(a[:, 10:] + torch.sigmoid((a + b)[:, :5]) * b[:, 10:])";
    add(
        "torch.lerp(" + next + ", c, torch.sigmoid((a + b)[:, 5:10]))", 3,
        [](const std::vector<Tensor>& in) { return gru_cell(in[0], in[1], in[2]).hidden; }, gru_hidden_of);
}

/// Normalises runs of `size` adjacent numbers.
Array normalized_runs(const Array& x, std::ptrdiff_t size, double eps) {
    Array y(x.shape);
    for (std::ptrdiff_t first = 0; first < x.size(); first += size) {
        double mean = 0, variance = 0;
        for (std::ptrdiff_t i = first; i < first + size; ++i) mean += x[i] / static_cast<double>(size);
        for (std::ptrdiff_t i = first; i < first + size; ++i)
            variance += (x[i] - mean) * (x[i] - mean) / static_cast<double>(size);
        for (std::ptrdiff_t i = first; i < first + size; ++i) y[i] = (x[i] - mean) / std::sqrt(variance + eps);
    }
    return y;
}

/// x * weight + bias by the channel, dimension 1.
Array by_channel(Array x, const Array& weight, const Array& bias) {
    const std::ptrdiff_t inner = x.size() / (x.shape[0] * x.shape[1]);
    for (std::ptrdiff_t i = 0; i < x.size(); ++i) {
        const std::ptrdiff_t channel = i / inner % x.shape[1];
        x[i] = x[i] * weight[channel] + bias[channel];
    }
    return x;
}

void add_normalizations(Table& table) {
    add_function(
        table, "F.group_norm(a, 2, b, c, 1e-5)", {{{2, 6, 5}}, {{6}}, {{6}}},
        [](const auto& in) { return group_norm(in[0], 2, in[1], in[2]); },
        [](const std::vector<Array>& in) { return by_channel(normalized_runs(in[0], 15, 1e-5), in[1], in[2]); });
    add_function(
        table, "F.group_norm(a, 3, eps=0.01)", {{{3, 6}}},
        [](const auto& in) { return group_norm(in[0], 3, {}, {}, 0.01); },
        [](const std::vector<Array>& in) { return normalized_runs(in[0], 2, 0.01); });
    add_function(
        table, "F.instance_norm(a, None, None, b, c)", {{{2, 3, 4, 3}}, {{3}}, {{3}}},
        [](const auto& in) { return instance_norm(in[0], in[1], in[2]); },
        [](const std::vector<Array>& in) { return by_channel(normalized_runs(in[0], 12, 1e-5), in[1], in[2]); });
    add_function(
        table, "F.rms_norm(a, (3, 4), b, 0.1)", {{{5, 3, 4}}, {{3, 4}}},
        [](const auto& in) {
            return rms_norm(in[0], {3, 4}, in[1], 0.1);
        },
        [](const std::vector<Array>& in) {
            Array y(in[0].shape);
            for (std::ptrdiff_t first = 0; first < y.size(); first += 12) {
                double square = 0;
                for (std::ptrdiff_t i = 0; i < 12; ++i) square += in[0][first + i] * in[0][first + i] / 12;
                for (std::ptrdiff_t i = 0; i < 12; ++i)
                    y[first + i] = in[0][first + i] / std::sqrt(square + 0.1) * in[1][i];
            }
            return y;
        });
    const auto run_batch_norm = [](const auto& in) {
        return batch_norm(in[0], {}, {}, in[1], in[2], {.training = true});
    };
    for (const Sizes& shape : {Sizes{7, 3}, Sizes{4, 3, 5}, Sizes{2, 3, 2, 1, 3}}) {
        FunctionOp& op =
            add_function(table, "F.batch_norm(a, None, None, b, c, True)", {{shape}, {{3}}, {{3}}}, run_batch_norm,
                         [shape](const std::vector<Array>& in) {
                             Sizes images{shape[0], shape[1], in[0].size() / (shape[0] * shape[1]), 1};
                             const Array x = reference::reshape(in[0], images);
                             return reference::reshape(
                                 reference::batch_norm(x, reference::channel_stats(x), in[1], in[2], 1e-5), shape);
                         });
        op.error = 1e-5;
    }
    add_function(
        table, "F.normalize(a, 2.0, 1)", {{{4, 5, 2}}}, [](const auto& in) { return normalize(in[0]); },
        [](const std::vector<Array>& in) {
            Array y(in[0].shape);
            for (std::ptrdiff_t i = 0; i < y.size(); ++i) {
                double square = 0;
                for (std::ptrdiff_t k = 0; k < 5; ++k) square += std::pow(in[0][i / 10 * 10 + i % 2 + 2 * k], 2);
                y[i] = in[0][i] / std::sqrt(square);
            }
            return y;
        });
    add_function(
        table, "F.cosine_similarity(a, b, 1)", {{{4, 6}}, {{4, 6}}},
        [](const auto& in) { return cosine_similarity(in[0], in[1]); },
        [](const std::vector<Array>& in) {
            Array y(Sizes{4});
            for (std::ptrdiff_t i = 0; i < 4; ++i) {
                double product = 0, first = 0, second = 0;
                for (std::ptrdiff_t k = 6 * i; k < 6 * i + 6; ++k) {
                    product += in[0][k] * in[1][k];
                    first += in[0][k] * in[0][k];
                    second += in[1][k] * in[1][k];
                }
                y[i] = product / std::sqrt(first * second);
            }
            return y;
        })
        .batch_inputs = {true, true};
}

/// Mean of x (N, C, H, W) over [top, bottom) x [left, right) of plane `plane`, divided by `count` or by the elements.
double window_mean(const Array& x, std::ptrdiff_t plane, std::ptrdiff_t top, std::ptrdiff_t bottom, std::ptrdiff_t left,
                   std::ptrdiff_t right, double count) {
    const std::ptrdiff_t h = x.shape[2], w = x.shape[3];
    double total = 0, elements = 0;
    for (std::ptrdiff_t i = std::max<std::ptrdiff_t>(top, 0); i < std::min(bottom, h); ++i)
        for (std::ptrdiff_t j = std::max<std::ptrdiff_t>(left, 0); j < std::min(right, w); ++j) {
            total += x[(plane * h + i) * w + j];
            ++elements;
        }
    return total / (count > 0 ? count : elements);
}

void add_average_pooling(Table& table) {
    struct Case {
        const char* torch;
        Sizes shape;
        int kh, kw, sh, sw, ph, pw;
        bool with_padding;
    };
    for (const Case& c : {Case{"F.avg_pool2d(a, 2)", {2, 3, 4, 7}, 2, 2, 2, 2, 0, 0, true},
                          Case{"F.avg_pool2d(a, (3, 2), (2, 1), (1, 1))", {2, 2, 5, 4}, 3, 2, 2, 1, 1, 1, true},
                          Case{"F.avg_pool2d(a, (3, 2), (1, 2), (1, 1), count_include_pad=False)",
                               {1, 2, 4, 5},
                               3,
                               2,
                               1,
                               2,
                               1,
                               1,
                               false}}) {
        add_function(
            table, c.torch, {{c.shape}},
            [c](const auto& in) {
                return avg_pool2d(in[0], {c.kh, c.kw}, Pair(c.sh, c.sw), {c.ph, c.pw}, c.with_padding);
            },
            [c](const std::vector<Array>& in) {
                const Array& x = in[0];
                const std::ptrdiff_t oh = (x.shape[2] + 2 * c.ph - c.kh) / c.sh + 1;
                const std::ptrdiff_t ow = (x.shape[3] + 2 * c.pw - c.kw) / c.sw + 1;
                Array y(Sizes{x.shape[0], x.shape[1], oh, ow});
                for (std::ptrdiff_t at = 0; at < y.size(); ++at) {
                    const std::ptrdiff_t top = at / ow % oh * c.sh - c.ph, left = at % ow * c.sw - c.pw;
                    y[at] = window_mean(x, at / (oh * ow), top, top + c.kh, left, left + c.kw,
                                        c.with_padding ? c.kh * c.kw : 0);
                }
                return y;
            });
    }
    struct Adaptive {
        const char* torch;
        Sizes shape;
        int h, w;
    };
    for (const Adaptive& c : {Adaptive{"F.adaptive_avg_pool2d(a, 1)", {2, 3, 4, 5}, 1, 1},
                              Adaptive{"F.adaptive_avg_pool2d(a, (2, 3))", {2, 2, 4, 6}, 2, 3},
                              Adaptive{"F.adaptive_avg_pool2d(a, (3, 4))", {1, 2, 5, 6}, 3, 4}}) {
        add_function(
            table, c.torch, {{c.shape}},
            [c](const auto& in) {
                return adaptive_avg_pool2d(in[0], {c.h, c.w});
            },
            [c](const std::vector<Array>& in) {
                const std::ptrdiff_t h = c.shape[2], w = c.shape[3];
                Array y(Sizes{c.shape[0], c.shape[1], c.h, c.w});
                for (std::ptrdiff_t at = 0; at < y.size(); ++at) {
                    const std::ptrdiff_t i = at / c.w % c.h, j = at % c.w;
                    y[at] = window_mean(in[0], at / (c.h * c.w), i * h / c.h, ((i + 1) * h + c.h - 1) / c.h,
                                        j * w / c.w, ((j + 1) * w + c.w - 1) / c.w, 0);
                }
                return y;
            });
    }
}

/// Sequences (N, C, L), whose reference is that of images of height 1.
void add_sequences(Table& table) {
    const auto images = [](Array x) {
        const Sizes shape{x.shape[0], x.shape[1], 1, x.shape[2]};
        return reference::reshape(std::move(x), shape);
    };
    const auto sequences = [](Array y) {
        const Sizes shape{y.shape[0], y.shape[1], y.shape[3]};
        return reference::reshape(std::move(y), shape);
    };
    add_function(
        table, "F.conv1d(a, b, c, 2, 1)", {{{2, 3, 9}}, {{4, 3, 3}}, {{4}}},
        [](const auto& in) { return conv1d(in[0], in[1], in[2], 2, 1); },
        [=](const std::vector<Array>& in) {
            return sequences(reference::conv2d(images(in[0]), images(in[1]), in[2], {1, 2, 0, 1}));
        });
    add_function(
        table, "F.conv1d(a, b, c, 1, 2, 2, 3)", {{{2, 6, 9}}, {{6, 2, 3}}, {{6}}},
        [](const auto& in) { return conv1d(in[0], in[1], in[2], 1, 2, 2, 3); },
        [=](const std::vector<Array>& in) {
            return sequences(reference::conv2d(images(in[0]), images(in[1]), in[2], {1, 1, 0, 2, 1, 2, 3}));
        });
    add_function(
        table, "F.max_pool1d(a, 3, 2, 1)", {{{2, 3, 8}}}, [](const auto& in) { return max_pool1d(in[0], 3, 2, 1); },
        [=](const std::vector<Array>& in) {
            return sequences(reference::max_pool2d(images(in[0]), 1, 3, {1, 2, 0, 1}));
        });
    add_function(
        table, "F.avg_pool1d(a, 3, 2)", {{{2, 3, 8}}}, [](const auto& in) { return avg_pool1d(in[0], 3, 2); },
        [](const std::vector<Array>& in) {
            Array y(Sizes{2, 3, 3});
            for (std::ptrdiff_t i = 0; i < y.size(); ++i) {
                const std::ptrdiff_t first = i / 3 * 8 + i % 3 * 2;
                y[i] = (in[0][first] + in[0][first + 1] + in[0][first + 2]) / 3;
            }
            return y;
        });
    add_function(
        table, "F.adaptive_avg_pool1d(a, 2)", {{{2, 3, 5}}},
        [](const auto& in) { return adaptive_avg_pool1d(in[0], 2); },
        [](const std::vector<Array>& in) {
            Array y(Sizes{2, 3, 2});
            for (std::ptrdiff_t i = 0; i < y.size(); ++i) {
                const std::ptrdiff_t first = i / 2 * 5 + i % 2 * 2;
                y[i] = (in[0][first] + in[0][first + 1] + in[0][first + 2]) / 3;
            }
            return y;
        });
}

void add_more_pooling(Table& table) {
    add_function(
        table, "F.softmin(a, 1)", {{{3, 5}}}, [](const auto& in) { return softmin(in[0], 1); },
        [](const std::vector<Array>& in) {
            return reference::map(reference::log_softmax(reference::map(in[0], [](double x) { return -x; }), 1),
                                  [](double x) { return std::exp(x); });
        });
    // Windows that divide the image, and windows that overlap.
    for (const Pair size : {Pair(2, 3), Pair(3, 2), Pair(1, 1)})
        add_function(
            table, "F.adaptive_max_pool2d(a, (" + std::to_string(size.h) + ", " + std::to_string(size.w) + "))",
            {{{2, 3, 4, 6}}}, [size](const auto& in) { return adaptive_max_pool2d(in[0], size); },
            [size](const std::vector<Array>& in) {
                Array y(Sizes{2, 3, size.h, size.w});
                std::ptrdiff_t next = 0;
                reference::for_each_index(y.shape, [&](const Sizes& at) {
                    double best = -std::numeric_limits<double>::infinity();
                    for (std::ptrdiff_t h = at[2] * 4 / size.h; h * size.h < (at[2] + 1) * 4; ++h)
                        for (std::ptrdiff_t w = at[3] * 6 / size.w; w * size.w < (at[3] + 1) * 6; ++w)
                            best = std::max(best, in[0][((at[0] * 3 + at[1]) * 4 + h) * 6 + w]);
                    y[next++] = best;
                });
                return y;
            });
    add_function(
        table, "F.adaptive_max_pool1d(a, 2)", {{{2, 3, 6}}},
        [](const auto& in) { return adaptive_max_pool1d(in[0], 2); },
        [](const std::vector<Array>& in) {
            Array y(Sizes{2, 3, 2});
            for (std::ptrdiff_t i = 0; i < 12; ++i) y[i] = std::max({in[0][3 * i], in[0][3 * i + 1], in[0][3 * i + 2]});
            return y;
        });
    add_function(
        table, "F.local_response_norm(a, 3, alpha=0.5, beta=0.6, k=1.5)", {{{2, 5, 4}}},
        [](const auto& in) { return local_response_norm(in[0], 3, 0.5, 0.6, 1.5); },
        [](const std::vector<Array>& in) {
            Array y(Sizes{2, 5, 4});
            for (std::ptrdiff_t i = 0; i < y.size(); ++i) {
                double squares = 0;
                for (std::ptrdiff_t c = i / 4 % 5 - 1; c <= i / 4 % 5 + 1; ++c)
                    if (c >= 0 && c < 5) squares += std::pow(in[0][(i / 20 * 5 + c) * 4 + i % 4], 2);
                y[i] = in[0][i] / std::pow(1.5 + 0.5 / 3 * squares, 0.6);
            }
            return y;
        });
    add_function(
        table, "F.conv_transpose1d(a, b, c, 2, 1, 1)", {{{2, 3, 4}}, {{3, 5, 3}}, {{5}}},
        [](const auto& in) { return conv_transpose1d(in[0], in[1], in[2], 2, 1, 1); },
        [](const std::vector<Array>& in) {
            Array y(Sizes{2, 5, 8});
            reference::for_each_index({2, 3, 4, 5, 3}, [&](const Sizes& at) {  // n, c, position, k, tap
                const std::ptrdiff_t to = at[2] * 2 + at[4] - 1;
                if (to >= 0 && to < 8)
                    y[(at[0] * 5 + at[3]) * 8 + to] +=
                        in[0][(at[0] * 3 + at[1]) * 4 + at[2]] * in[1][(at[1] * 5 + at[3]) * 3 + at[4]];
            });
            for (std::ptrdiff_t i = 0; i < y.size(); ++i) y[i] += in[2][i / 8 % 5];
            return y;
        });
}

}  // namespace

void add_activation_functions(Table& table) {
    add_activations(table);
    add_recurrent_cells(table);
    add_normalizations(table);
    add_average_pooling(table);
    add_sequences(table);
    add_more_pooling(table);
}

}  // namespace lockstep::test
