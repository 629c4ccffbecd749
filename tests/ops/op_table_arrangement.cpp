// Exchanged and joined dimensions, turns, diagonals, grids, products and distances in the op table.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "lockstep/ops/functional.h"
#include "lockstep/tests/ops/function_op.h"

namespace lockstep::test {

namespace {

/// The index of an element of the result in an input, or an empty one for 0.
using IndexIn = std::function<Sizes(const Sizes&)>;

Array picked(const Array& x, const Sizes& shape, const IndexIn& source) {
    Array y(shape);
    std::ptrdiff_t next = 0;
    reference::for_each_index(shape, [&](const Sizes& at) {
        const Sizes from = source(at);
        y[next++] = from.empty() ? 0 : x[reference::position(x.shape, from)];
    });
    return y;
}

void add_arrangements(Table& table) {
    const auto add = [&](const char* torch, const Sizes& from, const Sizes& to, bool batch,
                         Tensor (*function)(const Tensor&), const IndexIn& source) {
        add_function(
            table, torch, {{from}}, [function](const auto& in) { return function(in[0]); },
            [to, source](const std::vector<Array>& in) { return picked(in[0], to, source); })
            .batch_inputs = {batch};
    };
    add(
        "torch.movedim(a, 0, 2)", {2, 3, 4}, {3, 4, 2}, false, [](const Tensor& x) { return movedim(x, 0, 2); },
        [](const Sizes& at) {
            return Sizes{at[2], at[0], at[1]};
        });
    add(
        "torch.movedim(a, -1, 1)", {2, 3, 4}, {2, 4, 3}, true, [](const Tensor& x) { return movedim(x, -1, 1); },
        [](const Sizes& at) {
            return Sizes{at[0], at[2], at[1]};
        });
    add(
        "torch.unbind(a, 1)[2]", {2, 3, 4}, {2, 4}, true, [](const Tensor& x) { return unbind(x, 1).at(2); },
        [](const Sizes& at) {
            return Sizes{at[0], 2, at[1]};
        });
    add(
        "torch.narrow(a, 1, -3, 2)", {2, 5}, {2, 2}, true, [](const Tensor& x) { return narrow(x, 1, -3, 2); },
        [](const Sizes& at) {
            return Sizes{at[0], at[1] + 2};
        });
    const auto add_padded = [&](const char* torch, const Sizes& to, bool batch_first, double value) {
        add_function(
            table, torch, {{{2, 3}}, {{4, 3}}},
            [=](const auto& in) {
                return pad_sequence({in[0], in[1]}, batch_first, value);
            },
            [=](const std::vector<Array>& in) {
                Array y(to);
                std::ptrdiff_t next = 0;
                reference::for_each_index(to, [&](const Sizes& at) {
                    const Array& x = in[static_cast<std::size_t>(at[batch_first ? 0 : 1])];
                    const std::ptrdiff_t t = at[batch_first ? 1 : 0];
                    y[next++] = t < x.shape[0] ? x[t * 3 + at[2]] : value;
                });
                return y;
            })
            .batch_inputs = {false, false};
    };
    add_padded("torch.nn.utils.rnn.pad_sequence([a, b])", {4, 2, 3}, false, 0);
    add_padded("torch.nn.utils.rnn.pad_sequence([a, b], True, 0.5)", {2, 4, 3}, true, 0.5);
    add(
        "torch.unflatten(a, 1, (2, -1))", {2, 6}, {2, 2, 3}, true,
        [](const Tensor& x) {
            return unflatten(x, 1, {2, -1});
        },
        [](const Sizes& at) {
            return Sizes{at[0], at[1] * 3 + at[2]};
        });
    add(
        "torch.tile(a, (2,))", {2, 3}, {2, 6}, true, [](const Tensor& x) { return tile(x, {2}); },
        [](const Sizes& at) {
            return Sizes{at[0], at[1] % 3};
        });
    add(
        "torch.fliplr(a)", {2, 3}, {2, 3}, true, [](const Tensor& x) { return fliplr(x); },
        [](const Sizes& at) {
            return Sizes{at[0], 2 - at[1]};
        });
    add(
        "torch.flipud(a)", {2, 3}, {2, 3}, false, [](const Tensor& x) { return flipud(x); },
        [](const Sizes& at) {
            return Sizes{1 - at[0], at[1]};
        });
    add(
        "torch.rot90(a, 1, (1, 2))", {2, 3, 4}, {2, 4, 3}, true,
        [](const Tensor& x) {
            return rot90(x, 1, {1, 2});
        },
        [](const Sizes& at) {
            return Sizes{at[0], at[2], 3 - at[1]};
        });
    add(
        "torch.rot90(a, 2, (1, 2))", {2, 3, 4}, {2, 3, 4}, true,
        [](const Tensor& x) {
            return rot90(x, 2, {1, 2});
        },
        [](const Sizes& at) {
            return Sizes{at[0], 2 - at[1], 3 - at[2]};
        });
    add(
        "torch.rot90(a, -1, (1, 2))", {2, 3, 4}, {2, 4, 3}, true,
        [](const Tensor& x) {
            return rot90(x, -1, {1, 2});
        },
        [](const Sizes& at) {
            return Sizes{at[0], 2 - at[2], at[1]};
        });
    add(
        "torch.diagonal(a, 1, 1, 2)", {2, 3, 5}, {2, 3}, true, [](const Tensor& x) { return diagonal(x, 1, 1, 2); },
        [](const Sizes& at) {
            return Sizes{at[0], at[1], at[1] + 1};
        });
    add(
        "torch.diagonal(a, -1)", {4, 3}, {3}, false, [](const Tensor& x) { return diagonal(x, -1); },
        [](const Sizes& at) {
            return Sizes{at[0] + 1, at[0]};
        });
    add(
        "torch.diag_embed(a, 1)", {2, 3}, {2, 4, 4}, true, [](const Tensor& x) { return diag_embed(x, 1); },
        [](const Sizes& at) {
            return at[2] == at[1] + 1 ? Sizes{at[0], at[1]} : Sizes{};
        });
    add(
        "torch.diag_embed(a, -2)", {2, 3}, {2, 5, 5}, true, [](const Tensor& x) { return diag_embed(x, -2); },
        [](const Sizes& at) {
            return at[1] == at[2] + 2 ? Sizes{at[0], at[2]} : Sizes{};
        });
    add(
        "torch.diag(a)", {3}, {3, 3}, false, [](const Tensor& x) { return diag(x); },
        [](const Sizes& at) { return at[0] == at[1] ? Sizes{at[0]} : Sizes{}; });
    add(
        "torch.diag(a, 1)", {3, 4}, {3}, false, [](const Tensor& x) { return diag(x, 1); },
        [](const Sizes& at) {
            return Sizes{at[0], at[0] + 1};
        });
    add(
        "F.channel_shuffle(a, 2)", {2, 6, 3}, {2, 6, 3}, true, [](const Tensor& x) { return channel_shuffle(x, 2); },
        [](const Sizes& at) {
            return Sizes{at[0], at[1] % 2 * 3 + at[1] / 2, at[2]};
        });
    add_function(
        table, "torch.trace(a)", {{{3, 4}}}, [](const auto& in) { return trace(in[0]); },
        [](const std::vector<Array>& in) { return Array(Sizes{}, in[0][0] + in[0][5] + in[0][10]); });
    for (const int number : {0, 1})
        add_function(
            table, "torch.meshgrid(a, b, indexing='ij')[" + std::to_string(number) + "]",
            {{{3}, Values::any, number == 0}, {{4}, Values::any, number == 1}},
            [number](const auto& in) { return meshgrid(in)[static_cast<std::size_t>(number)]; },
            [number](const std::vector<Array>& in) {
                return picked(in[static_cast<std::size_t>(number)], {3, 4},
                              [number](const Sizes& at) { return Sizes{at[static_cast<std::size_t>(number)]}; });
            })
            .batch_inputs = {number == 0, false};
    const auto side_by_side = [](const std::vector<Array>& in) {
        Array y(Sizes{2, 5});
        for (std::ptrdiff_t i = 0; i < 10; ++i)
            y[i] = i % 5 < 2 ? in[0][i / 5 * 2 + i % 5] : in[1][i / 5 * 3 + i % 5 - 2];
        return y;
    };
    add_function(
        table, "torch.hstack([a, b])", {{{2, 2}}, {{2, 3}}}, [](const auto& in) { return hstack(in); }, side_by_side)
        .batch_inputs = {true, true};
    add_function(
        table, "torch.vstack([a, b])", {{{3}}, {{2, 3}}}, [](const auto& in) { return vstack(in); },
        [](const std::vector<Array>& in) {
            Array y(Sizes{3, 3});
            std::copy(in[0].v.begin(), in[0].v.end(), y.v.begin());
            std::copy(in[1].v.begin(), in[1].v.end(), y.v.begin() + 3);
            return y;
        })
        .batch_inputs = {false, false};
}

/// Sum over k < inner of a(i, k) b(k, j) for matrices that begin at the given elements.
double dot_of(const Array& a, std::ptrdiff_t row, const Array& b, std::ptrdiff_t column, std::ptrdiff_t inner,
              std::ptrdiff_t stride) {
    double total = 0;
    for (std::ptrdiff_t k = 0; k < inner; ++k) total += a[row + k] * b[column + k * stride];
    return total;
}

void add_products_and_distances(Table& table) {
    const auto batched = [](const std::vector<Array>& in) {
        Array y(Sizes{2, 3, 5});
        for (std::ptrdiff_t i = 0; i < y.size(); ++i) y[i] = dot_of(in[0], i / 5 * 4, in[1], i / 15 * 20 + i % 5, 4, 5);
        return y;
    };
    add_function(
        table, "torch.bmm(a, b)", {{{2, 3, 4}}, {{2, 4, 5}}}, [](const auto& in) { return bmm(in[0], in[1]); }, batched)
        .batch_inputs = {true, true};
    add_function(
        table, "torch.baddbmm(c, a, b, beta=0.5, alpha=2)", {{{2, 3, 4}}, {{2, 4, 5}}, {{5}}},
        [](const auto& in) { return baddbmm(in[2], in[0], in[1], 0.5, 2); },
        [batched](const std::vector<Array>& in) {
            Array y = batched(in);
            for (std::ptrdiff_t i = 0; i < y.size(); ++i) y[i] = 2 * y[i] + 0.5 * in[2][i % 5];
            return y;
        })
        .batch_inputs = {true, true, false};
    add_function(
        table, "torch.addmm(c, a, b)", {{{3, 4}}, {{4, 5}}, {{3, 5}}},
        [](const auto& in) { return addmm(in[2], in[0], in[1]); },
        [](const std::vector<Array>& in) {
            Array y(Sizes{3, 5});
            for (std::ptrdiff_t i = 0; i < 15; ++i) y[i] = in[2][i] + dot_of(in[0], i / 5 * 4, in[1], i % 5, 4, 5);
            return y;
        })
        .batch_inputs = {true, false, true};
    add_function(
        table, "torch.mv(a, b)", {{{3, 4}}, {{4}}}, [](const auto& in) { return mv(in[0], in[1]); },
        [](const std::vector<Array>& in) {
            Array y(Sizes{3});
            for (std::ptrdiff_t i = 0; i < 3; ++i) y[i] = dot_of(in[0], i * 4, in[1], 0, 4, 1);
            return y;
        })
        .batch_inputs = {true, false};
    add_function(
        table, "torch.dot(a, b)", {{{7}}, {{7}}}, [](const auto& in) { return dot(in[0], in[1]); },
        [](const std::vector<Array>& in) { return Array(Sizes{}, dot_of(in[0], 0, in[1], 0, 7, 1)); });
    add_function(
        table, "torch.tensordot(a, b, dims=2)", {{{2, 3, 4}}, {{3, 4, 5}}},
        [](const auto& in) { return tensordot(in[0], in[1]); },
        [](const std::vector<Array>& in) {
            Array y(Sizes{2, 5});
            for (std::ptrdiff_t i = 0; i < 10; ++i) y[i] = dot_of(in[0], i / 5 * 12, in[1], i % 5, 12, 5);
            return y;
        })
        .batch_inputs = {true, false};
    add_function(
        table, "torch.kron(a, b)", {{{2, 3}}, {{2}}}, [](const auto& in) { return kron(in[0], in[1]); },
        [](const std::vector<Array>& in) {
            Array y(Sizes{2, 6});
            for (std::ptrdiff_t i = 0; i < 12; ++i) y[i] = in[0][i / 2] * in[1][i % 2];
            return y;
        })
        .batch_inputs = {true, false};
    add_function(
        table, "torch.cross(a, b, dim=-1)", {{{4, 3}}, {{1, 3}}}, [](const auto& in) { return cross(in[0], in[1]); },
        [](const std::vector<Array>& in) {
            Array y(Sizes{4, 3});
            for (std::ptrdiff_t i = 0; i < 12; ++i) {
                const std::ptrdiff_t row = i / 3 * 3, u = (i + 1) % 3, v = (i + 2) % 3;
                y[i] = in[0][row + u] * in[1][v] - in[0][row + v] * in[1][u];
            }
            return y;
        })
        .batch_inputs = {true, false};
    const auto add_distances = [&](const char* torch, double p) {
        add_function(
            table, torch, {{{2, 3, 4}}, {{2, 5, 4}}}, [p](const auto& in) { return cdist(in[0], in[1], p); },
            [p](const std::vector<Array>& in) {
                Array y(Sizes{2, 3, 5});
                for (std::ptrdiff_t i = 0; i < y.size(); ++i) {
                    double total = 0;
                    for (std::ptrdiff_t k = 0; k < 4; ++k)
                        total += std::pow(std::abs(in[0][i / 5 * 4 + k] - in[1][i / 15 * 20 + i % 5 * 4 + k]), p);
                    y[i] = std::pow(total, 1 / p);
                }
                return y;
            })
            .batch_inputs = {true, true};
    };
    add_distances("torch.cdist(a, b)", 2);
    add_distances("torch.cdist(a, b, p=1.0)", 1);
    add_function(
        table, "F.pairwise_distance(a, b, eps=0.01)", {{{3, 5}}, {{3, 5}}},
        [](const auto& in) { return pairwise_distance(in[0], in[1], 2, 0.01); },
        [](const std::vector<Array>& in) {
            Array y(Sizes{3});
            for (std::ptrdiff_t i = 0; i < 15; ++i) y[i / 5] += std::pow(in[0][i] - in[1][i] + 0.01, 2);
            return reference::map(y, [](double x) { return std::sqrt(x); });
        })
        .batch_inputs = {true, true};
    add_function(
        table, "F.bilinear(a, b, c, d)", {{{3, 4}}, {{3, 5}}, {{2, 4, 5}}, {{2}}},
        [](const auto& in) { return bilinear(in[0], in[1], in[2], in[3]); },
        [](const std::vector<Array>& in) {
            Array y(Sizes{3, 2});
            for (std::ptrdiff_t i = 0; i < 6; ++i) {
                y[i] = in[3][i % 2];
                for (std::ptrdiff_t k = 0; k < 20; ++k)
                    y[i] += in[0][i / 2 * 4 + k / 5] * in[2][i % 2 * 20 + k] * in[1][i / 2 * 5 + k % 5];
            }
            return y;
        })
        .batch_inputs = {true, true, false, false};
}

}  // namespace

void add_arrangements_and_products(Table& table) {
    add_arrangements(table);
    add_products_and_distances(table);
}

}  // namespace lockstep::test
