// Positions in sorted sequences, running extrema, reductions at indices, and small products in the op table.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "lockstep/ops/functional.h"
#include "lockstep/tests/ops/function_op.h"

namespace lockstep::test {

namespace {

/// Calls visit(line) for every line of x (outer, size, inner) with the positions of its elements.
void for_lines(const Array& x, std::size_t dim, const std::function<void(const std::vector<std::ptrdiff_t>&)>& visit) {
    std::ptrdiff_t inner = 1;
    for (std::size_t d = dim + 1; d < x.shape.size(); ++d) inner *= x.shape[d];
    const std::ptrdiff_t size = x.shape[dim];
    for (std::ptrdiff_t line = 0; line < x.size() / size; ++line) {
        std::vector<std::ptrdiff_t> at;
        for (std::ptrdiff_t i = 0; i < size; ++i) at.push_back(line / inner * inner * size + i * inner + line % inner);
        visit(at);
    }
}

Array running_extremum(const Array& x, std::size_t dim, bool largest, bool positions) {
    Array y(x.shape);
    for_lines(x, dim, [&](const auto& at) {
        std::size_t best = 0;
        for (std::size_t i = 0; i < at.size(); ++i) {
            if (largest ? x[at[i]] >= x[at[best]] : x[at[i]] <= x[at[best]]) best = i;
            y[at[i]] = positions ? static_cast<double>(best) : x[at[best]];
        }
    });
    return y;
}

void add_running_extrema(Table& table) {
    const Input pieces{{3, 13}}, middle{{2, 7, 3}}, whole{{2, 9}, Values::classes, false, 4};
    add_function(
        table, "torch.cummax(a, 1)[0]", {pieces}, [](const auto& in) { return cummax(in[0], 1).values; },
        [](const std::vector<Array>& in) { return running_extremum(in[0], 1, true, false); });
    add_function(
        table, "torch.cummin(a, -2)[0]", {middle}, [](const auto& in) { return cummin(in[0], -2).values; },
        [](const std::vector<Array>& in) { return running_extremum(in[0], 1, false, false); });
    add_function(
        table, "torch.cummax(a, 1)[1]", {whole}, [](const auto& in) { return cummax(in[0], 1).indices; },
        [](const std::vector<Array>& in) { return running_extremum(in[0], 1, true, true); });
    add_function(
        table, "torch.cummin(a, 1)[1]", {whole}, [](const auto& in) { return cummin(in[0], 1).indices; },
        [](const std::vector<Array>& in) { return running_extremum(in[0], 1, false, true); });
    add_function(
        table, "torch.logcumsumexp(a, 1)", {middle}, [](const auto& in) { return logcumsumexp(in[0], 1); },
        [](const std::vector<Array>& in) {
            Array y(in[0].shape);
            for_lines(in[0], 1, [&](const auto& at) {
                double sum = 0;
                for (const std::ptrdiff_t i : at) y[i] = std::log(sum += std::exp(in[0][i]));
            });
            return y;
        });
    add_function(
        table, "torch.diff(a, n=2, dim=1)", {middle}, [](const auto& in) { return diff(in[0], 2, 1); },
        [](const std::vector<Array>& in) {
            Array y(Sizes{2, 5, 3});
            for (std::ptrdiff_t n = 0; n < 2; ++n)
                for (std::ptrdiff_t i = 0; i < 15; ++i) {
                    const double* const x = &in[0].v[static_cast<std::size_t>(n * 21 + i)];
                    y[n * 15 + i] = x[6] - 2 * x[3] + x[0];
                }
            return y;
        });
}

double position_of(const std::vector<double>& sorted, double value, bool right) {
    return static_cast<double>((right ? std::upper_bound(sorted.begin(), sorted.end(), value)
                                      : std::lower_bound(sorted.begin(), sorted.end(), value)) -
                               sorted.begin());
}

void add_positions(Table& table) {
    for (const std::ptrdiff_t count : {1, 7, 8}) {
        const Input numbers{{3, 11}, Values::classes, false, 9}, borders{{count}, Values::classes, false, 9};
        const auto reference = [](bool right) {
            return [right](const std::vector<Array>& in) {
                std::vector<double> sorted = in[1].v;
                std::sort(sorted.begin(), sorted.end());
                return reference::map(in[0], [&](double x) { return position_of(sorted, x, right); });
            };
        };
        add_function(
            table, "torch.bucketize(a, torch.sort(b)[0])", {numbers, borders},
            [](const auto& in) { return bucketize(in[0], sort(in[1]).values); }, reference(false))
            .batch_inputs = {true, false};
        add_function(
            table, "torch.searchsorted(torch.sort(b)[0], a, right=True)", {numbers, borders},
            [](const auto& in) { return searchsorted(sort(in[1]).values, in[0], true); }, reference(true))
            .batch_inputs = {true, false};
    }
    const Input rows{{3, 6}, Values::any, false}, values{{3, 4}, Values::any, false};
    add_function(
        table, "torch.searchsorted(torch.sort(a)[0], b)", {rows, values},
        [](const auto& in) { return searchsorted(sort(in[0]).values, in[1]); },
        [](const std::vector<Array>& in) {
            Array y(in[1].shape);
            for (std::ptrdiff_t row = 0; row < 3; ++row) {
                std::vector<double> sorted(in[0].v.begin() + row * 6, in[0].v.begin() + row * 6 + 6);
                std::sort(sorted.begin(), sorted.end());
                for (std::ptrdiff_t i = 0; i < 4; ++i) y[row * 4 + i] = position_of(sorted, in[1][row * 4 + i], false);
            }
            return y;
        })
        .batch_inputs = {true, true};
}

/// Reference of scatter_reduce along dimension 1 of (N, C).
Array reduced_at(const std::vector<Array>& in, ScatterReduction reduce, bool include_self) {
    const Array &x = in[0], &index = in[1], &source = in[2];
    Array y = x;
    const std::ptrdiff_t columns = x.shape[1], terms = index.shape[1];
    for (std::ptrdiff_t row = 0; row < x.shape[0]; ++row)
        for (std::ptrdiff_t column = 0; column < columns; ++column) {
            std::vector<double> all;
            if (include_self) all.push_back(x[row * columns + column]);
            for (std::ptrdiff_t i = 0; i < terms; ++i)
                if (static_cast<std::ptrdiff_t>(index[row * terms + i]) == column)
                    all.push_back(source[row * source.shape[1] + i]);
            if (all.empty()) continue;
            double sum = 0, product = 1;
            for (const double value : all) {
                sum += value;
                product *= value;
            }
            double& result = y[row * columns + column];
            switch (reduce) {
                case ScatterReduction::sum: result = sum; break;
                case ScatterReduction::prod: result = product; break;
                case ScatterReduction::mean: result = sum / static_cast<double>(all.size()); break;
                case ScatterReduction::amax: result = *std::max_element(all.begin(), all.end()); break;
                case ScatterReduction::amin: result = *std::min_element(all.begin(), all.end()); break;
            }
        }
    return y;
}

void add_scatter_reductions(Table& table) {
    const struct {
        const char* name;
        ScatterReduction reduce;
    } all[] = {{"sum", ScatterReduction::sum},
               {"prod", ScatterReduction::prod},
               {"mean", ScatterReduction::mean},
               {"amax", ScatterReduction::amax},
               {"amin", ScatterReduction::amin}};
    for (const auto& [name, reduce] : all)
        for (const bool self : {true, false})
            add_function(
                table,
                std::string("torch.scatter_reduce(a, 1, b, c, '") + name +
                    "', include_self=" + (self ? "True)" : "False)"),
                {{{3, 5}}, {{3, 7}, Values::classes, false, 4}, {{3, 7}}},
                [reduce, self](const auto& in) { return scatter_reduce(in[0], 1, in[1], in[2], reduce, self); },
                [reduce, self](const std::vector<Array>& in) { return reduced_at(in, reduce, self); })
                .batch_inputs = {true, false, false};
}

void add_small_products(Table& table) {
    const auto dot_of = [](const Array& a, std::ptrdiff_t i, const Array& b, std::ptrdiff_t j, std::ptrdiff_t size) {
        double sum = 0;
        for (std::ptrdiff_t k = 0; k < size; ++k) sum += a[i * size + k] * b[j * size + k];
        return sum;
    };
    add_function(
        table, "torch.mm(a, b)", {{{3, 4}}, {{4, 2}}}, [](const auto& in) { return mm(in[0], in[1]); },
        [](const std::vector<Array>& in) {
            Array y(Sizes{3, 2});
            for (std::ptrdiff_t i = 0; i < 3; ++i)
                for (std::ptrdiff_t j = 0; j < 2; ++j)
                    for (std::ptrdiff_t k = 0; k < 4; ++k) y[i * 2 + j] += in[0][i * 4 + k] * in[1][k * 2 + j];
            return y;
        })
        .batch_inputs = {true, false};
    add_function(
        table, "torch.inner(a, b)", {{{2, 3, 4}}, {{5, 4}}}, [](const auto& in) { return inner(in[0], in[1]); },
        [dot_of](const std::vector<Array>& in) {
            Array y(Sizes{2, 3, 5});
            for (std::ptrdiff_t i = 0; i < 6; ++i)
                for (std::ptrdiff_t j = 0; j < 5; ++j) y[i * 5 + j] = dot_of(in[0], i, in[1], j, 4);
            return y;
        })
        .batch_inputs = {true, false};
    add_function(
        table, "torch.vdot(a, b)", {{{6}}, {{6}}}, [](const auto& in) { return vdot(in[0], in[1]); },
        [dot_of](const std::vector<Array>& in) {
            Array y(Sizes{});
            y[0] = dot_of(in[0], 0, in[1], 0, 6);
            return y;
        })
        .batch_inputs = {false, false};
    add_function(
        table, "torch.addmv(a, b, c, beta=0.5, alpha=2)", {{{3}}, {{3, 4}}, {{4}}},
        [](const auto& in) { return addmv(in[0], in[1], in[2], 0.5, 2); },
        [dot_of](const std::vector<Array>& in) {
            Array y(Sizes{3});
            for (std::ptrdiff_t i = 0; i < 3; ++i) y[i] = 0.5 * in[0][i] + 2 * dot_of(in[1], i, in[2], 0, 4);
            return y;
        })
        .batch_inputs = {true, true, false};
    add_function(
        table, "torch.addr(a, b, c, beta=0.5, alpha=2)", {{{3, 4}}, {{3}}, {{4}}},
        [](const auto& in) { return addr(in[0], in[1], in[2], 0.5, 2); },
        [](const std::vector<Array>& in) {
            Array y(Sizes{3, 4});
            for (std::ptrdiff_t i = 0; i < 12; ++i) y[i] = 0.5 * in[0][i] + 2 * in[1][i / 4] * in[2][i % 4];
            return y;
        })
        .batch_inputs = {true, true, false};
}

void add_parts(Table& table) {
    add_function(
        table, "torch.cat(torch.tensor_split(a, 3, 1)[::-1], 1)", {{{2, 7}}},
        [](const auto& in) {
            std::vector<Tensor> parts = tensor_split(in[0], 3, 1);
            std::reverse(parts.begin(), parts.end());
            return cat(parts, 1);
        },
        [](const std::vector<Array>& in) {
            Array y(Sizes{2, 7});
            constexpr std::ptrdiff_t from[] = {5, 6, 3, 4, 0, 1, 2};
            for (std::ptrdiff_t i = 0; i < 14; ++i) y[i] = in[0][i / 7 * 7 + from[i % 7]];
            return y;
        });
    add_function(
        table, "torch.tensor_split(a, (2, -1), 1)[1]", {{{2, 7}}},
        [](const auto& in) {
            return tensor_split(in[0], std::vector<std::int64_t>{2, -1}, 1)[1];
        },
        [](const std::vector<Array>& in) {
            Array y(Sizes{2, 4});
            for (std::ptrdiff_t i = 0; i < 8; ++i) y[i] = in[0][i / 4 * 7 + 2 + i % 4];
            return y;
        });
    add_function(
        table, "torch.dstack((a, b))", {{{2, 3}}, {{2, 3}}},
        [](const auto& in) {
            return dstack({in[0], in[1]});
        },
        [](const std::vector<Array>& in) {
            Array y(Sizes{2, 3, 2});
            for (std::ptrdiff_t i = 0; i < 12; ++i) y[i] = in[static_cast<std::size_t>(i % 2)][i / 2];
            return y;
        })
        .batch_inputs = {true, true};
}

}  // namespace

void add_searches(Table& table) {
    add_running_extrema(table);
    add_positions(table);
    add_scatter_reductions(table);
    add_small_products(table);
    add_parts(table);
}

}  // namespace lockstep::test
