// Convolution and pooling of volumes in the op table.
#include <algorithm>
#include <limits>

#include "lockstep/ops/functional.h"
#include "lockstep/tests/ops/function_op.h"

namespace lockstep::test {

namespace {

struct Sides {
    std::ptrdiff_t d, h, w;
};

/// Windows over the last three dimensions.
struct VolumeWindows {
    Sides size, stride, padding, dilation{1, 1, 1};

    std::ptrdiff_t count(std::ptrdiff_t length, std::ptrdiff_t Sides::*side) const {
        return (length + 2 * padding.*side - dilation.*side * (size.*side - 1) - 1) / stride.*side + 1;
    }
    Sizes shape(const Sizes& x, std::ptrdiff_t channels) const {
        return {x[0], channels, count(x[2], &Sides::d), count(x[3], &Sides::h), count(x[4], &Sides::w)};
    }
    /// Calls visit(tap, position in x or -1 in the padding) for the window at `at` of a channel.
    template <class Visit>
    void for_taps(const Sizes& x, const Sizes& at, std::ptrdiff_t channel, const Visit& visit) const {
        for (std::ptrdiff_t tap = 0; tap < size.d * size.h * size.w; ++tap) {
            const std::ptrdiff_t z = at[2] * stride.d - padding.d + tap / (size.h * size.w) * dilation.d;
            const std::ptrdiff_t y = at[3] * stride.h - padding.h + tap / size.w % size.h * dilation.h;
            const std::ptrdiff_t column = at[4] * stride.w - padding.w + tap % size.w * dilation.w;
            const bool inside = z >= 0 && z < x[2] && y >= 0 && y < x[3] && column >= 0 && column < x[4];
            visit(tap, inside ? reference::position(x, {at[0], channel, z, y, column}) : -1);
        }
    }
};

Array convolved(const std::vector<Array>& in, const VolumeWindows& windows, std::ptrdiff_t groups) {
    const Array &x = in[0], &weight = in[1];
    const std::ptrdiff_t out = weight.shape[0], each = weight.shape[1], taps = weight.size() / (out * each);
    Array y(windows.shape(x.shape, out));
    std::ptrdiff_t next = 0;
    reference::for_each_index(y.shape, [&](const Sizes& at) {
        double sum = in.size() > 2 ? in[2][at[1]] : 0;
        for (std::ptrdiff_t c = 0; c < each; ++c)
            windows.for_taps(x.shape, at, at[1] / (out / groups) * each + c,
                             [&](std::ptrdiff_t tap, std::ptrdiff_t from) {
                                 if (from >= 0) sum += x[from] * weight[(at[1] * each + c) * taps + tap];
                             });
        y[next++] = sum;
    });
    return y;
}

/// `windows` lead from the result to x: every element of x adds its products to the window at its place.
Array transposed(const std::vector<Array>& in, const VolumeWindows& windows, const Sizes& shape,
                 std::ptrdiff_t groups) {
    const Array &x = in[0], &weight = in[1];
    const std::ptrdiff_t each = weight.shape[1], taps = weight.size() / (weight.shape[0] * each);
    Array y(shape);
    reference::for_each_index(x.shape, [&](const Sizes& at) {
        const double value = x[reference::position(x.shape, at)];
        for (std::ptrdiff_t k = 0; k < each; ++k)
            windows.for_taps(shape, at, at[1] / (x.shape[1] / groups) * each + k,
                             [&](std::ptrdiff_t tap, std::ptrdiff_t to) {
                                 if (to >= 0) y[to] += value * weight[(at[1] * each + k) * taps + tap];
                             });
    });
    const std::ptrdiff_t inner = shape[2] * shape[3] * shape[4];
    if (in.size() > 2)
        for (std::ptrdiff_t i = 0; i < y.size(); ++i) y[i] += in[2][i / inner % shape[1]];
    return y;
}

/// finish(sum, largest, taps inside, taps) of every window.
template <class Finish>
Array pooled(const Array& x, const VolumeWindows& windows, const Finish& finish) {
    Array y(windows.shape(x.shape, x.shape[1]));
    std::ptrdiff_t next = 0;
    reference::for_each_index(y.shape, [&](const Sizes& at) {
        double sum = 0, largest = -std::numeric_limits<double>::infinity();
        std::ptrdiff_t inside = 0, taps = 0;
        windows.for_taps(x.shape, at, at[1], [&](std::ptrdiff_t, std::ptrdiff_t from) {
            ++taps;
            if (from < 0) return;
            ++inside;
            sum += x[from];
            largest = std::max(largest, x[from]);
        });
        y[next++] = finish(sum, largest, static_cast<double>(inside), static_cast<double>(taps));
    });
    return y;
}

}  // namespace

void add_volumes(Table& table) {
    add_function(
        table, "F.conv_transpose3d(a, b, c)", {{{2, 2, 3, 2, 3}}, {{2, 3, 2, 3, 2}}, {{3}}},
        [](const auto& in) { return conv_transpose3d(in[0], in[1], in[2]); },
        [](const std::vector<Array>& in) {
            return transposed(in, {{2, 3, 2}, {1, 1, 1}, {0, 0, 0}}, {2, 3, 4, 4, 4}, 1);
        });
    add_function(
        table, "F.conv_transpose3d(a, b, c, (2, 1, 2), (1, 1, 0), (1, 0, 1), 2, (1, 2, 1))",
        {{{2, 4, 2, 3, 2}}, {{4, 1, 3, 2, 2}}, {{2}}},
        [](const auto& in) {
            return conv_transpose3d(in[0], in[1], in[2], {2, 1, 2}, {1, 1, 0}, {1, 0, 1}, 2, {1, 2, 1});
        },
        [](const std::vector<Array>& in) {
            return transposed(in, {{3, 2, 2}, {2, 1, 2}, {1, 1, 0}, {1, 2, 1}}, {2, 2, 4, 3, 5}, 2);
        });
    add_function(
        table, "F.conv3d(a, b, c)", {{{2, 2, 3, 4, 4}}, {{3, 2, 2, 3, 2}}, {{3}}},
        [](const auto& in) { return conv3d(in[0], in[1], in[2]); },
        [](const std::vector<Array>& in) {
            return convolved(in, {{2, 3, 2}, {1, 1, 1}, {0, 0, 0}}, 1);
        });
    add_function(
        table, "F.conv3d(a, b, None, (2, 1, 2), (1, 2, 0), (1, 2, 1))", {{{2, 2, 4, 3, 5}}, {{2, 2, 3, 3, 2}}},
        [](const auto& in) {
            return conv3d(in[0], in[1], {}, {2, 1, 2}, {1, 2, 0}, {1, 2, 1});
        },
        [](const std::vector<Array>& in) {
            return convolved(in, {{3, 3, 2}, {2, 1, 2}, {1, 2, 0}, {1, 2, 1}}, 1);
        });
    add_function(
        table, "F.conv3d(a, b, c, 1, 1, 1, 2)", {{{1, 4, 2, 3, 3}}, {{4, 2, 3, 3, 3}}, {{4}}},
        [](const auto& in) { return conv3d(in[0], in[1], in[2], 1, 1, 1, 2); },
        [](const std::vector<Array>& in) {
            return convolved(in, {{3, 3, 3}, {1, 1, 1}, {1, 1, 1}}, 2);
        });
    const VolumeWindows overlapping{{2, 3, 2}, {1, 2, 2}, {1, 1, 0}};
    add_function(
        table, "F.max_pool3d(a, 2)", {{{2, 2, 4, 4, 2}}}, [](const auto& in) { return max_pool3d(in[0], 2); },
        [](const std::vector<Array>& in) {
            return pooled(in[0], {{2, 2, 2}, {2, 2, 2}, {0, 0, 0}},
                          [](double, double most, double, double) { return most; });
        });
    add_function(
        table, "F.max_pool3d(a, (2, 3, 2), (1, 2, 2), (1, 1, 0))", {{{2, 2, 3, 5, 4}}},
        [](const auto& in) {
            return max_pool3d(in[0], {2, 3, 2}, Triple{1, 2, 2}, {1, 1, 0});
        },
        [=](const std::vector<Array>& in) {
            return pooled(in[0], overlapping, [](double, double most, double, double) { return most; });
        });
    add_function(
        table, "F.avg_pool3d(a, (2, 3, 2), (1, 2, 2), (1, 1, 0))", {{{2, 2, 3, 5, 4}}},
        [](const auto& in) {
            return avg_pool3d(in[0], {2, 3, 2}, Triple{1, 2, 2}, {1, 1, 0});
        },
        [=](const std::vector<Array>& in) {
            return pooled(in[0], overlapping, [](double sum, double, double, double taps) { return sum / taps; });
        });
    add_function(
        table, "F.avg_pool3d(a, (2, 3, 2), (1, 2, 2), (1, 1, 0), False, False)", {{{2, 2, 3, 5, 4}}},
        [](const auto& in) {
            return avg_pool3d(in[0], {2, 3, 2}, Triple{1, 2, 2}, {1, 1, 0}, false);
        },
        [=](const std::vector<Array>& in) {
            return pooled(in[0], overlapping, [](double sum, double, double inside, double) { return sum / inside; });
        });
    add_function(
        table, "F.adaptive_avg_pool3d(a, (2, 1, 3))", {{{2, 2, 4, 3, 6}}},
        [](const auto& in) {
            return adaptive_avg_pool3d(in[0], {2, 1, 3});
        },
        [](const std::vector<Array>& in) {
            return pooled(in[0], {{2, 3, 2}, {2, 3, 2}, {0, 0, 0}},
                          [](double sum, double, double, double taps) { return sum / taps; });
        });
}

}  // namespace lockstep::test
