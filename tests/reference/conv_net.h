// A small network in double precision, forward and backward, by plain loops: convolution (4 channels, 3x3, stride 2) ->
// relu -> linear -> relu -> linear -> log-softmax.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/tests/reference/ops.h"

namespace lockstep::reference {

/// Parameters in member order: conv.weight, conv.bias, fc1.weight, fc1.bias, fc2.weight, fc2.bias.
using Parameters = std::vector<Array>;

struct ConvNetRun {
    Array x, conv, hidden_in, hidden, log_probabilities;
};

inline Array relu(Array x) {
    for (double& value : x.v) value = std::max(value, 0.0);
    return x;
}

/// (N, in) weight (out, in) bias (out) -> (N, out)
inline Array linear(const Array& x, const Array& weight, const Array& bias) {
    Array y({x.dim(0), weight.dim(0)});
    for (std::ptrdiff_t n = 0; n < y.dim(0); ++n)
        for (std::ptrdiff_t o = 0; o < y.dim(1); ++o) {
            double sum = bias[o];
            for (std::ptrdiff_t i = 0; i < x.dim(1); ++i) sum += x[n * x.dim(1) + i] * weight[o * x.dim(1) + i];
            y[n * y.dim(1) + o] = sum;
        }
    return y;
}

/// Gradients of x, weight and bias.
inline std::vector<Array> linear_gradients(const Array& x, const Array& weight, const Array& dy) {
    std::vector<Array> result{Array(x.shape), Array(weight.shape), Array({weight.dim(0)})};
    for (std::ptrdiff_t n = 0; n < dy.dim(0); ++n)
        for (std::ptrdiff_t o = 0; o < dy.dim(1); ++o) {
            const double d = dy[n * dy.dim(1) + o];
            result[2][o] += d;
            for (std::ptrdiff_t i = 0; i < x.dim(1); ++i) {
                result[0][n * x.dim(1) + i] += d * weight[o * x.dim(1) + i];
                result[1][o * x.dim(1) + i] += d * x[n * x.dim(1) + i];
            }
        }
    return result;
}

inline Array relu_gradient(Array dy, const Array& x) {
    for (std::ptrdiff_t i = 0; i < dy.size(); ++i)
        if (x[i] <= 0) dy[i] = 0;
    return dy;
}

/// Gradient of log-softmax over dimension 1 of (N, C).
inline Array log_softmax_gradient(const Array& dy, const Array& y) {
    Array dx(y.shape);
    for (std::ptrdiff_t n = 0; n < y.dim(0); ++n) {
        double sum = 0;
        for (std::ptrdiff_t c = 0; c < y.dim(1); ++c) sum += dy[n * y.dim(1) + c];
        for (std::ptrdiff_t c = 0; c < y.dim(1); ++c) {
            const std::ptrdiff_t i = n * y.dim(1) + c;
            dx[i] = dy[i] - std::exp(y[i]) * sum;
        }
    }
    return dx;
}

inline constexpr Window conv_net_window{2, 2, 0, 0};

inline ConvNetRun run_conv_net(const Parameters& p, const Array& x) {
    ConvNetRun run;
    run.x = x;
    run.conv = conv2d(x, p[0], p[1], conv_net_window);
    const Array features = reshape(relu(run.conv), {x.dim(0), run.conv.size() / x.dim(0)});
    run.hidden_in = linear(features, p[2], p[3]);
    run.hidden = relu(run.hidden_in);
    run.log_probabilities = log_softmax(linear(run.hidden, p[4], p[5]), 1);
    return run;
}

/// Gradients of all parameters, then of x, from that of the log-probabilities.
inline Parameters conv_net_gradients(const Parameters& p, const ConvNetRun& run, const Array& dy) {
    const Array logits = log_softmax_gradient(dy, run.log_probabilities);
    const std::vector<Array> second = linear_gradients(run.hidden, p[4], logits);
    const Array features = reshape(relu(run.conv), {run.x.dim(0), run.conv.size() / run.x.dim(0)});
    const std::vector<Array> first = linear_gradients(features, p[2], relu_gradient(second[0], run.hidden_in));
    const Array conv_out = relu_gradient(reshape(first[0], run.conv.shape), run.conv);
    const std::vector<Array> conv = conv2d_gradients(run.x, p[0], true, conv_net_window, conv_out);
    return {conv[1], conv[2], first[1], first[2], second[1], second[2], conv[0]};
}

/// How a loss of the log-probabilities is made up.
struct ConvNetLoss {
    std::vector<double> class_weights;  ///< empty: all 1
    double ignore_index = -100;
    bool sum = false;       ///< reduction of the negative log likelihood
    double mse_factor = 0;  ///< times the mean squared difference to `dense`
    Array dense = {};       ///< as the log-probabilities
};

/// Value of the loss, and its gradient in `dy`.
inline double conv_net_loss(const ConvNetLoss& loss, const Array& log_probabilities,
                            const std::vector<std::int64_t>& target, Array& dy) {
    const std::ptrdiff_t classes = log_probabilities.dim(1);
    dy = Array(log_probabilities.shape);
    double numerator = 0, weight = 0;
    for (std::ptrdiff_t n = 0; n < log_probabilities.dim(0); ++n) {
        const std::int64_t c = target[static_cast<std::size_t>(n)];
        if (static_cast<double>(c) == loss.ignore_index) continue;
        const double w = loss.class_weights.empty() ? 1 : loss.class_weights[static_cast<std::size_t>(c)];
        numerator -= w * log_probabilities[n * classes + c];
        weight += w;
        dy[n * classes + c] -= w;
    }
    const double divisor = loss.sum ? 1 : weight;
    for (double& value : dy.v) value /= divisor;
    double result = numerator / divisor;
    if (loss.mse_factor != 0)
        for (std::ptrdiff_t i = 0; i < dy.size(); ++i) {
            const double difference = log_probabilities[i] - loss.dense[i];
            const double factor = loss.mse_factor / static_cast<double>(dy.size());
            result += factor * difference * difference;
            dy[i] += 2 * factor * difference;
        }
    return result;
}

}  // namespace lockstep::reference
