// The operations as plain loops in double: what kernels on every device are compared with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "lockstep/tests/reference/array.h"

namespace lockstep::reference {

inline Sizes broadcast(const Sizes& a, const Sizes& b) {
    Sizes result = a.size() >= b.size() ? a : b;
    const Sizes& other = a.size() >= b.size() ? b : a;
    const std::size_t shift = result.size() - other.size();
    for (std::size_t d = 0; d < other.size(); ++d)
        if (other[d] != 1) result[d + shift] = other[d];
    return result;
}

template <class F>
Array map(const Array& x, F f) {
    Array y = x;
    for (double& value : y.v) value = f(value);
    return y;
}

template <class F>
Array combine(const Array& a, const Array& b, F f) {
    Array y(broadcast(a.shape, b.shape));
    std::ptrdiff_t i = 0;
    for_each_index(y.shape, [&](const Sizes& at) { y[i++] = f(a[position(a.shape, at)], b[position(b.shape, at)]); });
    return y;
}

/// Summed over the dimensions in `dims`, which are kept with size 1.
inline Array sum(const Array& x, const std::vector<std::size_t>& dims) {
    Sizes shape = x.shape;
    for (const std::size_t d : dims) shape[d] = 1;
    Array y(shape);
    std::ptrdiff_t i = 0;
    for_each_index(x.shape, [&](const Sizes& at) { y[position(shape, at)] += x[i++]; });
    return y;
}

inline Array reshape(Array x, Sizes shape) {
    x.shape = std::move(shape);
    return x;
}

/// First largest element along `dim`, kept with size 1.
inline Array argmax(const Array& x, std::size_t dim) {
    Sizes shape = x.shape;
    shape[dim] = 1;
    Array y(shape), best(shape, -INFINITY);
    std::ptrdiff_t i = 0;
    for_each_index(x.shape, [&](const Sizes& at) {
        const std::ptrdiff_t to = position(shape, at);
        const double value = x[i++];
        if (value > best[to]) {
            best[to] = value;
            y[to] = static_cast<double>(at[dim]);
        }
    });
    return y;
}

inline Array cat(const std::vector<Array>& parts, std::size_t dim) {
    Sizes shape = parts[0].shape;
    shape[dim] = 0;
    for (const Array& part : parts) shape[dim] += part.shape[dim];
    Array y(shape);
    std::ptrdiff_t start = 0;
    for (const Array& part : parts) {
        std::ptrdiff_t i = 0;
        for_each_index(part.shape, [&](Sizes at) {
            at[dim] += start;
            y[position(shape, at)] = part[i++];
        });
        start += part.shape[dim];
    }
    return y;
}

/// (M, K) x (K, N) with an optional batch dimension in front of either.
inline Array matmul(const Array& a, const Array& b) {
    const bool batched = a.shape.size() == 3 || b.shape.size() == 3;
    const std::ptrdiff_t count = a.shape.size() == 3 ? a.shape[0] : b.shape.size() == 3 ? b.shape[0] : 1;
    const std::ptrdiff_t m = a.shape[a.shape.size() - 2], k = a.shape.back(), n = b.shape.back();
    Array y(batched ? Sizes{count, m, n} : Sizes{m, n});
    for (std::ptrdiff_t t = 0; t < count; ++t)
        for (std::ptrdiff_t i = 0; i < m; ++i)
            for (std::ptrdiff_t j = 0; j < n; ++j)
                for (std::ptrdiff_t l = 0; l < k; ++l)
                    y[(t * m + i) * n + j] += a[((a.shape.size() == 3 ? t : 0) * m + i) * k + l] *
                                              b[((b.shape.size() == 3 ? t : 0) * k + l) * n + j];
    return y;
}

struct Window {
    std::ptrdiff_t stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0, dilation_h = 1, dilation_w = 1;
    std::ptrdiff_t groups = 1;  ///< for convolutions
};

/// Calls f(x index, window row, window column, y index) for every element of every window that is inside
/// x (N, C, H, W); y (N, C, OH, OW).
template <class F>
void for_each_window_element(const Sizes& x, std::ptrdiff_t kh, std::ptrdiff_t kw, const Window& g, const Sizes& y,
                             F f) {
    for (std::ptrdiff_t plane = 0; plane < x[0] * x[1]; ++plane)
        for (std::ptrdiff_t oy = 0; oy < y[2]; ++oy)
            for (std::ptrdiff_t ox = 0; ox < y[3]; ++ox)
                for (std::ptrdiff_t i = 0; i < kh; ++i)
                    for (std::ptrdiff_t j = 0; j < kw; ++j) {
                        const std::ptrdiff_t row = oy * g.stride_h + i * g.dilation_h - g.pad_h,
                                             column = ox * g.stride_w + j * g.dilation_w - g.pad_w;
                        if (row < 0 || row >= x[2] || column < 0 || column >= x[3]) continue;
                        f((plane * x[2] + row) * x[3] + column, i, j, (plane * y[2] + oy) * y[3] + ox);
                    }
}

inline Sizes window_output(const Sizes& x, std::ptrdiff_t channels, std::ptrdiff_t kh, std::ptrdiff_t kw,
                           const Window& g) {
    return {x[0], channels, (x[2] + 2 * g.pad_h - g.dilation_h * (kh - 1) - 1) / g.stride_h + 1,
            (x[3] + 2 * g.pad_w - g.dilation_w * (kw - 1) - 1) / g.stride_w + 1};
}

/// Calls f(x index, weight index, y index) for every product of the convolution of x and weights (K, C / groups, kh,
/// kw).
template <class F>
void for_each_conv_product(const Sizes& x, const Sizes& w, const Window& g, F f) {
    const Sizes y = window_output(x, w[0], w[2], w[3], g);
    const std::ptrdiff_t plane = x[2] * x[3], out_plane = y[2] * y[3];
    for (std::ptrdiff_t n = 0; n < x[0]; ++n)
        for (std::ptrdiff_t k = 0; k < w[0]; ++k)
            for (std::ptrdiff_t c = 0; c < w[1]; ++c) {
                const std::ptrdiff_t channel = k / (w[0] / g.groups) * w[1] + c;
                for_each_window_element({1, 1, x[2], x[3]}, w[2], w[3], g, {1, 1, y[2], y[3]},
                                        [&](std::ptrdiff_t xi, std::ptrdiff_t i, std::ptrdiff_t j, std::ptrdiff_t yi) {
                                            f((n * x[1] + channel) * plane + xi, ((k * w[1] + c) * w[2] + i) * w[3] + j,
                                              (n * w[0] + k) * out_plane + yi);
                                        });
            }
}

/// bias may be empty.
inline Array conv2d(const Array& x, const Array& w, const Array& bias, const Window& g) {
    Array y(window_output(x.shape, w.shape[0], w.shape[2], w.shape[3], g));
    const std::ptrdiff_t plane = y.shape[2] * y.shape[3];
    if (!bias.v.empty())
        for (std::ptrdiff_t i = 0; i < y.size(); ++i) y[i] = bias[i / plane % bias.size()];
    for_each_conv_product(x.shape, w.shape, g,
                          [&](std::ptrdiff_t xi, std::ptrdiff_t wi, std::ptrdiff_t yi) { y[yi] += x[xi] * w[wi]; });
    return y;
}

/// Gradients of x, of the weights and, if `bias` is set, of the bias.
inline std::vector<Array> conv2d_gradients(const Array& x, const Array& w, bool bias, const Window& g,
                                           const Array& dy) {
    std::vector<Array> result{Array(x.shape), Array(w.shape)};
    for_each_conv_product(x.shape, w.shape, g, [&](std::ptrdiff_t xi, std::ptrdiff_t wi, std::ptrdiff_t yi) {
        result[0][xi] += dy[yi] * w[wi];
        result[1][wi] += dy[yi] * x[xi];
    });
    if (bias) result.push_back(reshape(sum(dy, {0, 2, 3}), {dy.shape[1]}));
    return result;
}

inline Array max_pool2d(const Array& x, std::ptrdiff_t kh, std::ptrdiff_t kw, const Window& g) {
    Array y(window_output(x.shape, x.shape[1], kh, kw, g), -INFINITY);
    for_each_window_element(
        x.shape, kh, kw, g, y.shape,
        [&](std::ptrdiff_t xi, std::ptrdiff_t, std::ptrdiff_t, std::ptrdiff_t yi) { y[yi] = std::max(y[yi], x[xi]); });
    return y;
}

/// Mean and biased variance of every channel of x (N, C, H, W).
struct ChannelStats {
    std::vector<double> mean, variance;
};
inline ChannelStats channel_stats(const Array& x) {
    const std::ptrdiff_t channels = x.shape[1], plane = x.shape[2] * x.shape[3];
    const double count = static_cast<double>(x.size()) / static_cast<double>(channels);
    ChannelStats stats{std::vector<double>(static_cast<std::size_t>(channels)),
                       std::vector<double>(static_cast<std::size_t>(channels))};
    const auto channel = [&](std::ptrdiff_t i) { return static_cast<std::size_t>(i / plane % channels); };
    for (std::ptrdiff_t i = 0; i < x.size(); ++i) stats.mean[channel(i)] += x[i] / count;
    for (std::ptrdiff_t i = 0; i < x.size(); ++i)
        stats.variance[channel(i)] += (x[i] - stats.mean[channel(i)]) * (x[i] - stats.mean[channel(i)]) / count;
    return stats;
}

inline Array batch_norm(const Array& x, const ChannelStats& stats, const Array& weight, const Array& bias, double eps) {
    const std::ptrdiff_t channels = x.shape[1], plane = x.shape[2] * x.shape[3];
    Array y(x.shape);
    for (std::ptrdiff_t i = 0; i < x.size(); ++i) {
        const std::ptrdiff_t c = i / plane % channels;
        const auto at = static_cast<std::size_t>(c);
        y[i] = (x[i] - stats.mean[at]) / std::sqrt(stats.variance[at] + eps) * weight[c] + bias[c];
    }
    return y;
}

inline Array log_softmax(const Array& x, std::size_t dim) {
    Sizes shape = x.shape;
    shape[dim] = 1;
    Array largest(shape, -INFINITY), total(shape), y(x.shape);
    std::ptrdiff_t i = 0;
    for_each_index(x.shape, [&](const Sizes& at) {
        double& value = largest[position(shape, at)];
        value = std::max(value, x[i++]);
    });
    i = 0;
    for_each_index(x.shape, [&](const Sizes& at) {
        const std::ptrdiff_t to = position(shape, at);
        total[to] += std::exp(x[i++] - largest[to]);
    });
    i = 0;
    for_each_index(x.shape, [&](const Sizes& at) {
        const std::ptrdiff_t to = position(shape, at);
        y[i] = x[i] - largest[to] - std::log(total[to]);
        ++i;
    });
    return y;
}

/// Negative log likelihood of log-probabilities (N, C, ...): numerator and weight. `weights` may be empty.
struct Nll {
    double numerator = 0, weight = 0;
};
inline Nll nll(const Array& log_probabilities, const Array& target, const Array& weights, double ignore_index) {
    Nll result;
    std::ptrdiff_t position = 0;
    for_each_index(target.shape, [&](Sizes at) {
        const double number = target[position++];
        if (number == ignore_index) return;
        const auto c = static_cast<std::ptrdiff_t>(number);
        const double w = weights.v.empty() ? 1 : weights[c];
        at.insert(at.begin() + 1, c);
        result.numerator -= w * log_probabilities[reference::position(log_probabilities.shape, at)];
        result.weight += w;
    });
    return result;
}

/// Gradients of sum(dy * f(inputs)) with respect to every input, by central differences.
inline std::vector<Array> finite_differences(const std::function<Array(const std::vector<Array>&)>& f,
                                             std::vector<Array> inputs, const std::vector<bool>& wanted,
                                             const Array& dy) {
    constexpr double step = 1e-5;
    std::vector<Array> result(inputs.size());
    for (std::size_t k = 0; k < inputs.size(); ++k) {
        if (!wanted[k]) continue;
        result[k] = Array(inputs[k].shape);
        for (std::ptrdiff_t i = 0; i < inputs[k].size(); ++i) {
            const double at = inputs[k][i];
            inputs[k][i] = at + step;
            const Array above = f(inputs);
            inputs[k][i] = at - step;
            const Array below = f(inputs);
            inputs[k][i] = at;
            double slope = 0;
            for (std::ptrdiff_t j = 0; j < dy.size(); ++j) slope += dy[j] * (above[j] - below[j]);
            result[k][i] = slope / (2 * step);
        }
    }
    return result;
}

/// The same for functions whose elements each depend on one element of every input, which may be broadcast: all
/// elements are moved at once.
inline std::vector<Array> elementwise_differences(const std::function<Array(const std::vector<Array>&)>& f,
                                                  const std::vector<Array>& inputs, const std::vector<bool>& wanted,
                                                  const Array& dy) {
    constexpr double step = 1e-5;
    std::vector<Array> result(inputs.size());
    for (std::size_t k = 0; k < inputs.size(); ++k) {
        if (!wanted[k]) continue;
        std::vector<Array> above = inputs, below = inputs;
        for (double& value : above[k].v) value += step;
        for (double& value : below[k].v) value -= step;
        const Array y1 = f(above), y0 = f(below);
        result[k] = Array(inputs[k].shape);
        std::ptrdiff_t j = 0;
        for_each_index(dy.shape, [&](const Sizes& at) {
            result[k][position(inputs[k].shape, at)] += dy[j] * (y1[j] - y0[j]) / (2 * step);
            ++j;
        });
    }
    return result;
}

}  // namespace lockstep::reference
