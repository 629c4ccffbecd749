// Functions that choose, count, join and integrate elements, in the op table.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <utility>

#include "lockstep/ops/functional.h"
#include "lockstep/tests/ops/function_op.h"

namespace lockstep::test {

namespace {

using Line = std::vector<double>;

/// A function of the lines along dimension 1 of a matrix.
FunctionOp::Reference of_rows(const std::function<double(const Line&)>& function) {
    return [function](const std::vector<Array>& in) {
        const std::ptrdiff_t rows = in[0].shape[0], size = in[0].shape[1];
        Array y(Sizes{rows});
        for (std::ptrdiff_t row = 0; row < rows; ++row)
            y[row] = function(Line(in[0].v.begin() + row * size, in[0].v.begin() + (row + 1) * size));
        return y;
    };
}

Input exact(const Sizes& shape, std::vector<double> values) {
    return {shape, Values::any, false, 0, std::move(values)};
}
Input whole(const Sizes& shape, int below) { return {shape, Values::classes, false, below}; }

/// The most frequent number, the smallest one of several.
double most_frequent(const Line& x) {
    std::map<double, int> counts;
    for (const double value : x) ++counts[value];
    return std::max_element(counts.begin(), counts.end(),
                            [](const auto& a, const auto& b) { return a.second < b.second; })
        ->first;
}

double quantile_of(Line x, double q) {
    std::sort(x.begin(), x.end());
    const double rank = q * static_cast<double>(x.size() - 1);
    const auto below = static_cast<std::size_t>(rank);
    const double part = rank - static_cast<double>(below);
    return part > 0 ? x[below] * (1 - part) + x[below + 1] * part : x[below];
}

void add_orders(Table& table) {
    add_function(
        table, "torch.median(a)", {{{4, 5}}}, [](const auto& in) { return median(in[0]); },
        [](const std::vector<Array>& in) {
            Line all = in[0].v;
            std::sort(all.begin(), all.end());
            Array y(Sizes{});
            y[0] = all[9];
            return y;
        })
        .batch_inputs = {false};
    add_function(
        table, "torch.nanmedian(a, 1)[0]", {{{4, 8}}}, [](const auto& in) { return nanmedian(in[0], 1).values; },
        of_rows([](Line x) {
            std::sort(x.begin(), x.end());
            return x[3];
        }))
        .batch_inputs = {true};
    add_function(
        table, "torch.mode(a, 1)[0]", {whole({5, 12}, 4)}, [](const auto& in) { return mode(in[0], 1).values; },
        of_rows(most_frequent))
        .batch_inputs = {true};
    add_function(
        table, "torch.mode(a, 1)[1]", {whole({5, 12}, 4)}, [](const auto& in) { return mode(in[0], 1).indices; },
        of_rows([](const Line& x) {
            const auto last = std::find(x.rbegin(), x.rend(), most_frequent(x));
            return static_cast<double>(x.rend() - last - 1);
        }))
        .batch_inputs = {true};
    add_function(
        table, "torch.mode(a, 0, keepdim=True)[0]", {exact({6, 1}, {0.5, 2, 0.5, -1, 2, 7})},
        [](const auto& in) { return mode(in[0], 0, true).values; },
        [](const std::vector<Array>& in) {
            Array y(Sizes{1, 1});
            y[0] = in[0][0];
            return y;
        })
        .batch_inputs = {false};
    add_function(
        table, "torch.quantile(a, torch.tensor([0.25, 0.7], dtype=a.dtype), 1)", {{{3, 7}}},
        [](const auto& in) {
            const Tensor wide = is_half_type(in[0].dtype()) ? in[0].to(DType::f32) : in[0];
            return quantile(wide, {0.25, 0.7}, 1).to(in[0].dtype());
        },
        [](const std::vector<Array>& in) {
            Array y(Sizes{2, 3});
            for (std::ptrdiff_t i = 0; i < 6; ++i) {
                const auto row = in[0].v.begin() + i % 3 * 7;
                y[i] = quantile_of(Line(row, row + 7), i < 3 ? 0.25 : 0.7);
            }
            return y;
        })
        .batch_inputs = {false};
    const auto counts = [](double low, double high, std::ptrdiff_t bins) {
        return [=](const std::vector<Array>& in) {
            Array y(Sizes{bins});
            const auto [least, most] = std::minmax_element(in[0].v.begin(), in[0].v.end());
            const double first = low < high ? low : *least, last = low < high ? high : *most;
            for (const double value : in[0].v) {
                if (value < first || value > last) continue;
                const auto bin =
                    static_cast<std::ptrdiff_t>((value - first) * static_cast<double>(bins) / (last - first));
                y[std::min(bin, bins - 1)] += 1;
            }
            return y;
        };
    };
    add_function(
        table, "torch.histc(a, 7, -1, 1.3)", {{{6, 8}, Values::any, false}},
        [](const auto& in) { return histc(in[0], 7, -1, 1.3); }, counts(-1, 1.3, 7))
        .batch_inputs = {false};
    add_function(
        table, "torch.histc(a, 4)", {exact({2, 4}, {0, 0.5, 1, 1.25, 2, 3, 3.5, 4})},
        [](const auto& in) { return histc(in[0], 4); }, counts(0, 0, 4))
        .batch_inputs = {false};
}

void add_choices(Table& table) {
    add_function(
        table, "torch.isin(a, b)", {whole({4, 6}, 9), whole({5}, 9)}, [](const auto& in) { return isin(in[0], in[1]); },
        [](const std::vector<Array>& in) {
            return reference::map(
                in[0], [&](double value) { return std::count(in[1].v.begin(), in[1].v.end(), value) > 0 ? 1.0 : 0.0; });
        })
        .batch_inputs = {true, false};
    add_function(
        table, "torch.isin(a, b, invert=True)",
        {exact({2, 3}, {0.5, -1, 2, 3, 0, 7}), exact({2, 2}, {7, 0.5, -1, -0.0})},
        [](const auto& in) { return isin(in[0], in[1], true); },
        [](const std::vector<Array>& in) {
            return reference::map(in[0], [](double value) { return value == 2 || value == 3 ? 1.0 : 0.0; });
        })
        .batch_inputs = {true, false};
    add_function(
        table, "torch.take(a, b)", {{{3, 5}}, whole({2, 4}, 15)}, [](const auto& in) { return take(in[0], in[1]); },
        [](const std::vector<Array>& in) {
            return reference::map(in[1], [&](double at) { return in[0][static_cast<std::ptrdiff_t>(at)]; });
        })
        .batch_inputs = {false, true};
    add_function(
        table, "torch.masked_scatter(a, a > 0.3, b)", {{{3, 5}}, {{4, 4}}},
        [](const auto& in) { return masked_scatter(in[0], in[0] > 0.3, in[1]); },
        [](const std::vector<Array>& in) {
            std::ptrdiff_t next = 0;
            return reference::map(in[0], [&](double value) { return value > 0.3 ? in[1][next++] : value; });
        })
        .batch_inputs = {true, false};
    add_function(
        table, "torch.signbit(a)", {exact({2, 3}, {-1, -0.0, 0, 2, -7, 0.5})},
        [](const auto& in) { return signbit(in[0]); },
        [](const std::vector<Array>& in) {
            return reference::map(in[0], [](double value) { return std::signbit(value) ? 1.0 : 0.0; });
        });
    add_function(
        table, "torch.sgn(a)", {{{3, 5}}}, [](const auto& in) { return sgn(in[0]); },
        [](const std::vector<Array>& in) {
            return reference::map(in[0], [](double value) { return value > 0 ? 1.0 : value < 0 ? -1.0 : 0.0; });
        })
        .elementwise = true;
    add_function(
        table, "torch.clamp(a, b, c)", {{{3, 5}}, {{5}}, {{3, 1}, Values::positive}},
        [](const auto& in) { return clamp(in[0], in[1], in[2]); },
        [](const std::vector<Array>& in) {
            Array y = in[0];
            for (std::ptrdiff_t i = 0; i < y.size(); ++i) y[i] = std::min(std::max(y[i], in[1][i % 5]), in[2][i / 5]);
            return y;
        })
        .batch_inputs = {true, false, true};
    add_function(
        table, "F.rrelu(a, 0.1, 0.5)", {{{3, 5}}}, [](const auto& in) { return rrelu(in[0], 0.1, 0.5); },
        [](const std::vector<Array>& in) {
            return reference::map(in[0], [](double value) { return value > 0 ? value : 0.3 * value; });
        })
        .elementwise = true;
}

/// A function of the bits of two numbers, or of one and a constant.
void add_bits(Table& table) {
    using Bits = std::int64_t (*)(std::int64_t, std::int64_t);
    using Function = Tensor (*)(const Tensor&, const Tensor&);
    const struct {
        const char* torch;
        Function function;
        Bits bits;
        int below;
    } all[] = {
        {"torch.bitwise_and(a, b)", bitwise_and, [](auto a, auto b) { return a & b; }, 300},
        {"torch.bitwise_or(a, b)", bitwise_or, [](auto a, auto b) { return a | b; }, 300},
        {"torch.bitwise_xor(a, b)", bitwise_xor, [](auto a, auto b) { return a ^ b; }, 300},
        {"torch.bitwise_left_shift(a, b)", bitwise_left_shift, [](auto a, auto b) { return a << b; }, 40},
        {"torch.bitwise_right_shift(a, b)", bitwise_right_shift, [](auto a, auto b) { return a >> b; }, 9},
    };
    for (const auto& [torch, function, bits, below] : all)
        add_function(
            table, torch, {whole({3, 7}, 300), whole({7}, below)},
            [function](const auto& in) { return function(in[0], in[1]); },
            [bits](const std::vector<Array>& in) {
                Array y = in[0];
                for (std::ptrdiff_t i = 0; i < y.size(); ++i)
                    y[i] = static_cast<double>(
                        bits(static_cast<std::int64_t>(in[0][i]), static_cast<std::int64_t>(in[1][i % 7])));
                return y;
            })
            .batch_inputs = {true, false};
    add_function(
        table, "torch.bitwise_not(a)", {whole({3, 7}, 300)}, [](const auto& in) { return bitwise_not(in[0]); },
        [](const std::vector<Array>& in) { return reference::map(in[0], [](double value) { return -1 - value; }); });
}

/// Values put at indices of the first dimensions. Equal indices only if values are added: PyTorch has no defined result
/// for others.
void add_index_puts(Table& table) {
    const Input x{{3, 4, 5}};
    for (const bool accumulate : {true, false}) {
        const auto indices = [accumulate](const Sizes& shape, int below, std::vector<double> distinct) {
            return accumulate ? whole(shape, below) : Input{shape, Values::classes, false, below, std::move(distinct)};
        };
        const Input rows = indices({6}, 3, {0, 1, 2, 0, 1, 2}), columns = indices({6}, 2, {0, 0, 0, 1, 1, 1});
        const std::string end = accumulate ? "accumulate=True)" : "accumulate=False)";
        add_function(
            table, "torch.index_put(a, (b, c), d, " + end, {x, rows, columns, {{6, 1}}},
            [accumulate](const auto& in) {
                return index_put(in[0], {in[1], in[2]}, in[3], accumulate);
            },
            [accumulate](const std::vector<Array>& in) {
                Array y = in[0];
                for (std::ptrdiff_t i = 0; i < 6; ++i)
                    for (std::ptrdiff_t k = 0; k < 5; ++k) {
                        double& at = y[static_cast<std::ptrdiff_t>(in[1][i]) * 20 +
                                       static_cast<std::ptrdiff_t>(in[2][i]) * 5 + k];
                        at = accumulate ? at + in[3][i] : in[3][i];
                    }
                return y;
            })
            .batch_inputs = {false, false, false, false};
        add_function(
            table, "torch.index_put(a, (b,), c, " + end, {{{8, 4}}, indices({2, 3}, 3, {7, 2, 5, 0, 3, 1}), {{3, 4}}},
            [accumulate](const auto& in) { return index_put(in[0], {in[1]}, in[2], accumulate); },
            [accumulate](const std::vector<Array>& in) {
                Array y = in[0];
                for (std::ptrdiff_t i = 0; i < 6; ++i)
                    for (std::ptrdiff_t k = 0; k < 4; ++k) {
                        double& at = y[static_cast<std::ptrdiff_t>(in[1][i]) * 4 + k];
                        at = accumulate ? at + in[2][i % 3 * 4 + k] : in[2][i % 3 * 4 + k];
                    }
                return y;
            })
            .batch_inputs = {false, false, false};
    }
}

/// Quantiles of rows of which some elements are NaN.
void add_nanquantiles(Table& table) {
    const auto reference = [](std::vector<double> q) {
        return [q](const std::vector<Array>& in) {
            Array y(q.size() == 1 ? Sizes{3, 1} : Sizes{static_cast<std::ptrdiff_t>(q.size()), 3, 1});
            for (std::size_t i = 0; i < 3 * q.size(); ++i) {
                Line line;
                for (std::size_t k = 0; k < 9; ++k)
                    if (const double value = in[0].v[i % 3 * 9 + k]; value <= 0.8) line.push_back(value);
                y.v[i] = quantile_of(line, q[i / 3]);
            }
            return y;
        };
    };
    const auto with_nan = [](const Tensor& x) {
        const Tensor wide = is_half_type(x.dtype()) ? x.to(DType::f32) : x;
        return masked_fill(wide, wide > 0.8, std::numeric_limits<double>::quiet_NaN());
    };
    add_function(
        table, "torch.nanquantile(a.masked_fill(a > 0.8, torch.nan), 0.3, 1, keepdim=True)", {{{3, 9}}},
        [=](const auto& in) { return nanquantile(with_nan(in[0]), 0.3, 1, true).to(in[0].dtype()); }, reference({0.3}));
    add_function(
        table,
        "torch.nanquantile(a.masked_fill(a > 0.8, torch.nan), torch.tensor([0.25, 0.7], dtype=a.dtype), 1, "
        "keepdim=True)",
        {{{3, 9}}},
        [=](const auto& in) {
            return nanquantile(with_nan(in[0]), {0.25, 0.7}, 1, true).to(in[0].dtype());
        },
        reference({0.25, 0.7}))
        .batch_inputs = {false};
}

void add_joins(Table& table) {
    add_function(
        table, "torch.block_diag(a, b, c)", {{{2, 3}}, {{4}}, {{3, 1}}},
        [](const auto& in) {
            return block_diag({in[0], in[1], in[2]});
        },
        [](const std::vector<Array>& in) {
            Array y(Sizes{6, 8});
            for (std::ptrdiff_t i = 0; i < 6; ++i) y[i / 3 * 8 + i % 3] = in[0][i];
            for (std::ptrdiff_t i = 0; i < 4; ++i) y[2 * 8 + 3 + i] = in[1][i];
            for (std::ptrdiff_t i = 0; i < 3; ++i) y[(3 + i) * 8 + 7] = in[2][i];
            return y;
        })
        .batch_inputs = {false, false, false};
    add_function(
        table, "torch.cartesian_prod(a, b)", {{{3}}, {{4}}},
        [](const auto& in) {
            return cartesian_prod({in[0], in[1]});
        },
        [](const std::vector<Array>& in) {
            Array y(Sizes{12, 2});
            for (std::ptrdiff_t i = 0; i < 12; ++i) {
                y[2 * i] = in[0][i / 4];
                y[2 * i + 1] = in[1][i % 4];
            }
            return y;
        })
        .batch_inputs = {false, false};
    add_function(
        table, "torch.meshgrid(a, b, indexing='xy')[0]", {{{3}}, {{4}, Values::any, false}},
        [](const auto& in) {
            return meshgrid({in[0], in[1]}, GridIndexing::xy).at(0);
        },
        [](const std::vector<Array>& in) {
            Array y(Sizes{4, 3});
            for (std::ptrdiff_t i = 0; i < 12; ++i) y[i] = in[0][i % 3];
            return y;
        })
        .batch_inputs = {false, false};
    add_function(
        table, "torch.column_stack((a, b))", {{{4}}, {{4, 2}}},
        [](const auto& in) {
            return column_stack({in[0], in[1]});
        },
        [](const std::vector<Array>& in) {
            Array y(Sizes{4, 3});
            for (std::ptrdiff_t i = 0; i < 12; ++i) y[i] = i % 3 == 0 ? in[0][i / 3] : in[1][i / 3 * 2 + i % 3 - 1];
            return y;
        })
        .batch_inputs = {true, true};
    add_function(
        table, "torch.movedim(a, (0, 3), (2, -4))", {{{2, 3, 4, 5}}},
        [](const auto& in) {
            return movedim(in[0], {0, 3}, {2, -4});
        },
        [](const std::vector<Array>& in) {
            Array y(Sizes{5, 3, 2, 4});
            std::ptrdiff_t next = 0;
            reference::for_each_index(y.shape, [&](const Sizes& at) {
                y[next++] = in[0][reference::position(in[0].shape, {at[2], at[1], at[3], at[0]})];
            });
            return y;
        })
        .batch_inputs = {false};
    add_function(
        table, "torch.roll(a, (1, -2), (1, 2))", {{{2, 3, 5}}},
        [](const auto& in) {
            return roll(in[0], {1, -2}, {1, 2});
        },
        [](const std::vector<Array>& in) {
            Array y(in[0].shape);
            std::ptrdiff_t next = 0;
            reference::for_each_index(y.shape, [&](const Sizes& at) {
                y[next++] = in[0][reference::position(in[0].shape, {at[0], (at[1] + 2) % 3, (at[2] + 2) % 5})];
            });
            return y;
        });
    add_function(
        table, "torch.atleast_3d(a) * torch.swapaxes(torch.broadcast_to(b, (2, 3, 3)), 0, 1)", {{{3, 2}}, {{2, 3, 1}}},
        [](const auto& in) {
            return atleast_3d(in[0]) * swapaxes(broadcast_to(in[1], {2, 3, 3}), 0, 1);
        },
        [](const std::vector<Array>& in) {
            Array y(Sizes{3, 2, 3});
            for (std::ptrdiff_t i = 0; i < 18; ++i) y[i] = in[0][i / 3] * in[1][i / 3 % 2 * 3 + i / 6];
            return y;
        })
        .batch_inputs = {true, false};
}

void add_sums_of_products(Table& table) {
    add_function(
        table, "torch.tensordot(a, b, ([2, 0], [0, -1]))", {{{2, 3, 4}}, {{4, 5, 2}}},
        [](const auto& in) {
            return tensordot(in[0], in[1], {2, 0}, {0, -1});
        },
        [](const std::vector<Array>& in) {
            Array y(Sizes{3, 5});
            reference::for_each_index({3, 5, 4, 2}, [&](const Sizes& at) {
                y[at[0] * 5 + at[1]] += in[0][(at[3] * 3 + at[0]) * 4 + at[2]] * in[1][(at[2] * 5 + at[1]) * 2 + at[3]];
            });
            return y;
        })
        .batch_inputs = {false, false};
    add_function(
        table, "torch.addbmm(a, b, c, beta=0.5, alpha=2)", {{{3, 5}}, {{2, 3, 4}}, {{2, 4, 5}}},
        [](const auto& in) { return addbmm(in[0], in[1], in[2], 0.5, 2); },
        [](const std::vector<Array>& in) {
            Array y = reference::map(in[0], [](double value) { return value / 2; });
            reference::for_each_index({2, 3, 5, 4}, [&](const Sizes& at) {
                y[at[1] * 5 + at[2]] +=
                    2 * in[1][(at[0] * 3 + at[1]) * 4 + at[3]] * in[2][(at[0] * 4 + at[3]) * 5 + at[2]];
            });
            return y;
        })
        .batch_inputs = {true, false, false};
    const auto covariance = [](const std::vector<Array>& in, std::ptrdiff_t a, std::ptrdiff_t b, double divisor) {
        double of_a = 0, of_b = 0, sum = 0;
        for (std::ptrdiff_t i = 0; i < 7; ++i) {
            of_a += in[0][a * 7 + i] / 7;
            of_b += in[0][b * 7 + i] / 7;
        }
        for (std::ptrdiff_t i = 0; i < 7; ++i) sum += (in[0][a * 7 + i] - of_a) * (in[0][b * 7 + i] - of_b);
        return sum / divisor;
    };
    add_function(
        table, "torch.cov(a)", {{{3, 7}}}, [](const auto& in) { return cov(in[0]); },
        [=](const std::vector<Array>& in) {
            Array y(Sizes{3, 3});
            for (std::ptrdiff_t i = 0; i < 9; ++i) y[i] = covariance(in, i / 3, i % 3, 6);
            return y;
        });
    add_function(
        table, "torch.corrcoef(a)", {{{3, 7}}}, [](const auto& in) { return corrcoef(in[0]); },
        [=](const std::vector<Array>& in) {
            Array y(Sizes{3, 3});
            for (std::ptrdiff_t i = 0; i < 9; ++i)
                y[i] = covariance(in, i / 3, i % 3, 1) /
                       std::sqrt(covariance(in, i / 3, i / 3, 1) * covariance(in, i % 3, i % 3, 1));
            return y;
        });
    add_function(
        table, "F.pdist(a)", {{{4, 3}}}, [](const auto& in) { return pdist(in[0]); },
        [](const std::vector<Array>& in) {
            Array y(Sizes{6});
            std::ptrdiff_t next = 0;
            for (std::ptrdiff_t i = 0; i < 4; ++i)
                for (std::ptrdiff_t j = i + 1; j < 4; ++j) {
                    double sum = 0;
                    for (std::ptrdiff_t k = 0; k < 3; ++k) sum += std::pow(in[0][i * 3 + k] - in[0][j * 3 + k], 2);
                    y[next++] = std::sqrt(sum);
                }
            return y;
        })
        .batch_inputs = {false};
    add_function(
        table, "torch.trapezoid(a, dx=0.5, dim=1)", {{{2, 5, 3}}},
        [](const auto& in) { return trapezoid(in[0], 0.5, 1); },
        [](const std::vector<Array>& in) {
            Array y(Sizes{2, 3});
            reference::for_each_index({2, 4, 3}, [&](const Sizes& at) {
                const std::ptrdiff_t first = (at[0] * 5 + at[1]) * 3 + at[2];
                y[at[0] * 3 + at[2]] += (in[0][first] + in[0][first + 3]) * 0.25;
            });
            return y;
        })
        .batch_inputs = {true};
    add_function(
        table, "torch.trapezoid(a, b)", {{{3, 4}}, {{4}}}, [](const auto& in) { return trapezoid(in[0], in[1]); },
        [](const std::vector<Array>& in) {
            Array y(Sizes{3});
            for (std::ptrdiff_t i = 0; i < 9; ++i) {
                const std::ptrdiff_t first = i / 3 * 4 + i % 3;
                y[i / 3] += (in[0][first] + in[0][first + 1]) * (in[1][i % 3 + 1] - in[1][i % 3]) / 2;
            }
            return y;
        })
        .batch_inputs = {true, false};
}

}  // namespace

void add_rarer_functions(Table& table) {
    add_orders(table);
    add_choices(table);
    add_bits(table);
    add_index_puts(table);
    add_nanquantiles(table);
    add_joins(table);
    add_sums_of_products(table);
}

}  // namespace lockstep::test
