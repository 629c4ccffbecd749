// Padding by elements of the tensor, and sliding windows, in the op table.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/ops/functional.h"
#include "lockstep/tests/ops/function_op.h"

namespace lockstep::test {

namespace {

using EdgeSource = std::function<std::ptrdiff_t(std::ptrdiff_t i, std::ptrdiff_t size)>;

/// x with `before` and `after` elements around each of its last two dimensions, each a copy of element source(i, size).
Array surrounded(const Array& x, const Sizes& before, const Sizes& after, const EdgeSource& source) {
    const std::size_t h = x.shape.size() - 2, w = h + 1;
    Sizes shape = x.shape;
    shape[h] += before[0] + after[0];
    shape[w] += before[1] + after[1];
    Array y(shape);
    std::ptrdiff_t next = 0;
    reference::for_each_index(shape, [&](const Sizes& at) {
        Sizes from = at;
        from[h] = source(at[h] - before[0], x.shape[h]);
        from[w] = source(at[w] - before[1], x.shape[w]);
        y[next++] = x[reference::position(x.shape, from)];
    });
    return y;
}

void add_padding(Table& table) {
    const EdgeSource mirrored = [](std::ptrdiff_t i, std::ptrdiff_t size) {
        while (i < 0 || i >= size) i = i < 0 ? -i : 2 * size - 2 - i;
        return i;
    };
    const EdgeSource nearest = [](std::ptrdiff_t i, std::ptrdiff_t size) {
        return i < 0 ? 0 : i >= size ? size - 1 : i;
    };
    const EdgeSource around = [](std::ptrdiff_t i, std::ptrdiff_t size) { return (i + 10 * size) % size; };
    add_function(
        table, "F.pad(a, (1, 2, 2, 0), 'reflect')", {{{2, 2, 3, 4}}},
        [](const auto& in) {
            return pad(in[0], {1, 2, 2, 0}, PaddingMode::reflect);
        },
        [=](const std::vector<Array>& in) {
            return surrounded(in[0], {2, 1}, {0, 2}, mirrored);
        });
    add_function(
        table, "F.pad(a, (3, 1, 0, 4), 'replicate')", {{{2, 2, 2, 3}}},
        [](const auto& in) {
            return pad(in[0], {3, 1, 0, 4}, PaddingMode::replicate);
        },
        [=](const std::vector<Array>& in) {
            return surrounded(in[0], {0, 3}, {4, 1}, nearest);
        });
    add_function(
        table, "F.pad(a, (3, 1, 1, 2), 'circular')", {{{2, 2, 2, 3}}},
        [](const auto& in) {
            return pad(in[0], {3, 1, 1, 2}, PaddingMode::circular);
        },
        [=](const std::vector<Array>& in) {
            return surrounded(in[0], {1, 3}, {2, 1}, around);
        });
    add_function(
        table, "F.pad(a, (-1, 2, 2, -1), 'reflect')", {{{2, 2, 4, 5}}},
        [](const auto& in) {
            return pad(in[0], {-1, 2, 2, -1}, PaddingMode::reflect);
        },
        [=](const std::vector<Array>& in) {
            return surrounded(in[0], {2, -1}, {-1, 2}, mirrored);
        });
}

/// Sliding windows over images of h x w.
struct Window {
    std::ptrdiff_t h, w, kh, kw, dilation_h, dilation_w, padding_h, padding_w, stride_h, stride_w;

    std::ptrdiff_t rows() const { return (h + 2 * padding_h - dilation_h * (kh - 1) - 1) / stride_h + 1; }
    std::ptrdiff_t columns() const { return (w + 2 * padding_w - dilation_w * (kw - 1) - 1) / stride_w + 1; }

    /// Calls visit(element of the image, element of the columns) for all that are in the image.
    void each(std::ptrdiff_t images, std::ptrdiff_t channels,
              const std::function<void(std::ptrdiff_t, std::ptrdiff_t)>& visit) const {
        std::ptrdiff_t column = 0;
        reference::for_each_index({images, channels, kh, kw, rows(), columns()}, [&](const Sizes& at) {
            const std::ptrdiff_t y = at[4] * stride_h + at[2] * dilation_h - padding_h;
            const std::ptrdiff_t x = at[5] * stride_w + at[3] * dilation_w - padding_w;
            if (y >= 0 && y < h && x >= 0 && x < w) visit(((at[0] * channels + at[1]) * h + y) * w + x, column);
            ++column;
        });
    }
};

void add_unfold(Table& table, const std::string& torch, std::ptrdiff_t channels, const Window& window,
                FunctionOp::Run run) {
    add_function(
        table, torch, {{{2, channels, window.h, window.w}}}, std::move(run), [=](const std::vector<Array>& in) {
            Array y(Sizes{2, channels * window.kh * window.kw, window.rows() * window.columns()});
            window.each(2, channels, [&](std::ptrdiff_t pixel, std::ptrdiff_t column) { y[column] = in[0][pixel]; });
            return y;
        });
}

void add_fold(Table& table, const std::string& torch, std::ptrdiff_t channels, const Window& window,
              FunctionOp::Run run) {
    add_function(table, torch, {{{2, channels * window.kh * window.kw, window.rows() * window.columns()}}},
                 std::move(run), [=](const std::vector<Array>& in) {
                     Array y(Sizes{2, channels, window.h, window.w});
                     window.each(2, channels,
                                 [&](std::ptrdiff_t pixel, std::ptrdiff_t column) { y[pixel] += in[0][column]; });
                     return y;
                 });
}

/// max_pool2d with windows that contain what is left at the end.
void add_pools_round_up(Table& table) {
    const struct {
        Sizes shape;
        std::ptrdiff_t window, step, margin;
        Sizes out;
    } all[] = {{{2, 3, 6, 8}, 3, 2, 0, {3, 4}},  // one more column, and one more row
               {{1, 2, 6, 7}, 3, 2, 1, {4, 4}},
               {{1, 16, 5, 5}, 2, 3, 1, {2, 2}},  // no window in the padding only
               {{1, 2, 4, 4}, 2, 2, 0, {2, 2}}};
    for (const auto& c : all)
        add_function(
            table, fmt::format("F.max_pool2d(a, {}, {}, {}, ceil_mode=True)", c.window, c.step, c.margin), {{c.shape}},
            [c](const auto& in) {
                const auto whole = [](std::ptrdiff_t x) { return static_cast<int>(x); };
                return max_pool2d(in[0], whole(c.window), Pair(whole(c.step)), whole(c.margin), true);
            },
            [c](const std::vector<Array>& in) {
                const std::ptrdiff_t h = c.shape[2], w = c.shape[3];
                Array y(Sizes{c.shape[0], c.shape[1], c.out[0], c.out[1]}, -INFINITY);
                for (std::ptrdiff_t i = 0; i < y.size(); ++i) {
                    const std::ptrdiff_t plane = i / (c.out[0] * c.out[1]);
                    const std::ptrdiff_t top = i / c.out[1] % c.out[0] * c.step - c.margin;
                    const std::ptrdiff_t left = i % c.out[1] * c.step - c.margin;
                    for (std::ptrdiff_t row = std::max<std::ptrdiff_t>(top, 0); row < std::min(h, top + c.window);
                         ++row)
                        for (std::ptrdiff_t column = std::max<std::ptrdiff_t>(left, 0);
                             column < std::min(w, left + c.window); ++column)
                            y[i] = std::max(y[i], in[0][(plane * h + row) * w + column]);
                }
                return y;
            });
}

}  // namespace

void add_windows(Table& table) {
    add_pools_round_up(table);
    add_padding(table);
    const Window plain{4, 5, 2, 3, 1, 1, 0, 0, 1, 1}, far{6, 7, 2, 3, 2, 1, 1, 2, 3, 2},
        wide{1, 2, 7, 5, 1, 1, 3, 2, 1, 1};
    add_unfold(table, "F.unfold(a, (2, 3))", 2, plain, [](const auto& in) { return unfold(in[0], {2, 3}); });
    add_unfold(table, "F.unfold(a, (2, 3), (2, 1), (1, 2), (3, 2))", 2, far, [](const auto& in) {
        return unfold(in[0], {2, 3}, {2, 1}, {1, 2}, {3, 2});
    });
    add_unfold(table, "F.unfold(a, (7, 5), 1, (3, 2))", 1, wide, [](const auto& in) {
        return unfold(in[0], {7, 5}, 1, {3, 2});
    });
    add_fold(table, "F.fold(a, (4, 5), (2, 3))", 2, plain, [](const auto& in) { return fold(in[0], {4, 5}, {2, 3}); });
    add_fold(table, "F.fold(a, (6, 7), (2, 3), (2, 1), (1, 2), (3, 2))", 2, far, [](const auto& in) {
        return fold(in[0], {6, 7}, {2, 3}, {2, 1}, {1, 2}, {3, 2});
    });
    add_fold(table, "F.fold(a, (1, 2), (7, 5), 1, (3, 2))", 1, wide, [](const auto& in) {
        return fold(in[0], {1, 2}, {7, 5}, 1, {3, 2});
    });
}

}  // namespace lockstep::test
