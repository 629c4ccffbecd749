// Sorting, cumulative sums and products, and exchanges of pixels in the op table.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "lockstep/ops/functional.h"
#include "lockstep/tests/ops/function_op.h"

namespace lockstep::test {

namespace {

/// Applies `change` to every line of numbers along `dim`; its results have `size` numbers.
Array by_lines(const Array& x, std::size_t dim, std::ptrdiff_t size,
               const std::function<std::vector<double>(const std::vector<double>&)>& change) {
    std::ptrdiff_t inner = 1;
    for (std::size_t d = dim + 1; d < x.shape.size(); ++d) inner *= x.shape[d];
    Sizes shape = x.shape;
    const std::ptrdiff_t length = shape[dim];
    shape[dim] = size;
    Array y(shape);
    for (std::ptrdiff_t line = 0; line < x.size() / length; ++line) {
        const std::ptrdiff_t from = line / inner * inner * length + line % inner;
        const std::ptrdiff_t to = line / inner * inner * size + line % inner;
        std::vector<double> values;
        for (std::ptrdiff_t i = 0; i < length; ++i) values.push_back(x[from + i * inner]);
        const std::vector<double> made = change(values);
        for (std::ptrdiff_t i = 0; i < size; ++i) y[to + i * inner] = made[static_cast<std::size_t>(i)];
    }
    return y;
}

std::vector<double> positions(const std::vector<double>& x, bool descending) {
    std::vector<std::size_t> order(x.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto larger = [](double a, double b) { return (std::isnan(a) && !std::isnan(b)) || a > b; };
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return descending ? larger(x[a], x[b]) : larger(x[b], x[a]);
    });
    return {order.begin(), order.end()};
}

std::vector<double> in_order(const std::vector<double>& x, bool descending) {
    std::vector<double> y;
    for (const double at : positions(x, descending)) y.push_back(x[static_cast<std::size_t>(at)]);
    return y;
}

void add_sorting(Table& table) {
    struct Case {
        const char* call;
        Sizes shape;
        int dim;
        bool descending;
    };
    for (const Case& c : {Case{"torch.sort(a)", {3, 11}, 1, false}, Case{"torch.sort(a, 1, True)", {2, 8, 3}, 1, true},
                          Case{"torch.sort(a, -2)", {2, 5, 2}, 1, false}, Case{"torch.sort(a)", {2, 1}, 1, false}}) {
        const std::ptrdiff_t size = c.shape[static_cast<std::size_t>(c.dim)];
        add_function(
            table, std::string(c.call) + "[0]", {{c.shape}},
            [c](const auto& in) { return lockstep::sort(in[0], c.dim, c.descending).values; },
            [c, size](const std::vector<Array>& in) {
                return by_lines(in[0], static_cast<std::size_t>(c.dim), size,
                                [c](const std::vector<double>& x) { return in_order(x, c.descending); });
            });
        add_function(
            table, std::string(c.call) + "[1]", {{c.shape, Values::any, false}},
            [c](const auto& in) { return argsort(in[0], c.dim, c.descending); },
            [c, size](const std::vector<Array>& in) {
                return by_lines(in[0], static_cast<std::size_t>(c.dim), size,
                                [c](const std::vector<double>& x) { return positions(x, c.descending); });
            });
    }
    // Integers, most of which are equal to others.
    const Input few{{2, 70, 2}, Values::classes, false, 9};
    for (const bool descending : {false, true}) {
        add_function(
            table, descending ? "torch.sort(a, 1, True)[0]" : "torch.sort(a, 1)[0]", {few},
            [descending](const auto& in) { return lockstep::sort(in[0], 1, descending).values; },
            [descending](const std::vector<Array>& in) {
                return by_lines(in[0], 1, 70,
                                [descending](const std::vector<double>& x) { return in_order(x, descending); });
            });
        add_function(
            table,
            descending ? "torch.sort(a, dim=1, descending=True, stable=True)[1]"
                       : "torch.sort(a, dim=1, stable=True)[1]",
            {few}, [descending](const auto& in) { return argsort(in[0], 1, descending); },
            [descending](const std::vector<Array>& in) {
                return by_lines(in[0], 1, 70,
                                [descending](const std::vector<double>& x) { return positions(x, descending); });
            });
    }
    for (const bool largest : {true, false})
        add_function(
            table, largest ? "torch.topk(a, 3, 1)[0]" : "torch.topk(a, 3, 1, False)[0]", {{{2, 7, 2}}},
            [largest](const auto& in) { return topk(in[0], 3, 1, largest).values; },
            [largest](const std::vector<Array>& in) {
                return by_lines(in[0], 1, 3, [largest](const std::vector<double>& x) { return in_order(x, largest); });
            });
}

void add_scans(Table& table) {
    const auto accumulated = [](auto combine) {
        return [combine](const std::vector<double>& x) {
            std::vector<double> y(x.size());
            std::partial_sum(x.begin(), x.end(), y.begin(), combine);
            return y;
        };
    };
    add_function(
        table, "torch.cumsum(a, 1)", {{{3, 13}}}, [](const auto& in) { return cumsum(in[0], 1); },
        [=](const std::vector<Array>& in) { return by_lines(in[0], 1, 13, accumulated(std::plus<>())); });
    add_function(
        table, "torch.cumsum(a, -2)", {{{2, 4, 3}}}, [](const auto& in) { return cumsum(in[0], -2); },
        [=](const std::vector<Array>& in) { return by_lines(in[0], 1, 4, accumulated(std::plus<>())); });
    for (const Sizes& shape : {Sizes{3, 40}, Sizes{2, 37, 5}})
        add_function(
            table, "torch.cumsum(a, 1)", {{shape, Values::classes, false, 5}},
            [](const auto& in) { return cumsum(in[0], 1); },
            [=](const std::vector<Array>& in) { return by_lines(in[0], 1, shape[1], accumulated(std::plus<>())); });
    add_function(
        table, "torch.cumprod(a + 1, 1)", {{{2, 9, 2}, Values::classes, false, 4}},
        [](const auto& in) { return cumprod(in[0] + 1, 1); },
        [=](const std::vector<Array>& in) {
            return by_lines(reference::map(in[0], [](double x) { return x + 1; }), 1, 9,
                            accumulated(std::multiplies<>()));
        });
    add_function(
        table, "torch.cumprod(a, 1)", {{{2, 6, 2}}}, [](const auto& in) { return cumprod(in[0], 1); },
        [=](const std::vector<Array>& in) { return by_lines(in[0], 1, 6, accumulated(std::multiplies<>())); });
    const auto product = [](const std::vector<double>& x) {
        return std::vector<double>{std::accumulate(x.begin(), x.end(), 1.0, std::multiplies<>())};
    };
    add_function(
        table, "torch.prod(a, 1)", {{{3, 5}}}, [](const auto& in) { return prod(in[0], 1); },
        [=](const std::vector<Array>& in) { return reference::reshape(by_lines(in[0], 1, 1, product), {3}); });
    add_function(
        table, "torch.prod(a, -2, True)", {{{2, 4, 3}}}, [](const auto& in) { return prod(in[0], -2, true); },
        [=](const std::vector<Array>& in) { return by_lines(in[0], 1, 1, product); });
    add_function(
        table, "torch.prod(a)", {{{2, 3}}}, [](const auto& in) { return prod(in[0]); },
        [=](const std::vector<Array>& in) {
            return reference::reshape(by_lines(reference::reshape(in[0], {1, 6}), 1, 1, product), {});
        })
        .batch_inputs = {false};
}

void add_pixels(Table& table) {
    add_function(
        table, "F.pixel_shuffle(a, 2)", {{{2, 8, 3, 2}}}, [](const auto& in) { return pixel_shuffle(in[0], 2); },
        [](const std::vector<Array>& in) {
            Array y(Sizes{2, 2, 6, 4});
            std::ptrdiff_t next = 0;
            reference::for_each_index(y.shape, [&](const Sizes& at) {
                const Sizes from{at[0], at[1] * 4 + at[2] % 2 * 2 + at[3] % 2, at[2] / 2, at[3] / 2};
                y[next++] = in[0][reference::position(in[0].shape, from)];
            });
            return y;
        });
    add_function(
        table, "F.pixel_unshuffle(a, 2)", {{{2, 2, 4, 6}}}, [](const auto& in) { return pixel_unshuffle(in[0], 2); },
        [](const std::vector<Array>& in) {
            Array y(Sizes{2, 8, 2, 3});
            std::ptrdiff_t next = 0;
            reference::for_each_index(y.shape, [&](const Sizes& at) {
                const Sizes from{at[0], at[1] / 4, at[2] * 2 + at[1] / 2 % 2, at[3] * 2 + at[1] % 2};
                y[next++] = in[0][reference::position(in[0].shape, from)];
            });
            return y;
        });
}

}  // namespace

void add_sorts_and_scans(Table& table) {
    add_sorting(table);
    add_scans(table);
    add_pixels(table);
}

}  // namespace lockstep::test
