// A regression whose parameters are f64, with what torch.optim.SGD makes of it in loops of doubles. A setting that is
// rounded to f32 on its way is off by 1e-8 and more.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/runtime/random.h"

namespace f64_regression {

namespace ls = lockstep;

using Values = std::vector<double>;

constexpr std::int64_t rows = 11, in = 4, out = 3;
constexpr int steps = 8;

/// Settings that no float holds exactly.
inline const ls::SgdOptions settings{.lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.007};

inline ls::Tensor random(const ls::Shape& shape) {
    const ls::Tensor values = ls::Tensor::randn(shape).to(ls::DType::f64);
    return values / 3.0;  // all 53 bits are used
}

/// y = x weight^T + bias in f64.
struct Regression {
    ls::Parameter weight{random({out, in})}, bias{random({out})};
    LOCKSTEP_MEMBERS(weight, bias)
    ls::Tensor forward(const ls::Tensor& x) const { return linear(x, weight, bias); }
};

struct Data {
    ls::Tensor x, y;
    Regression net;
    Data() : x((ls::manual_seed(31), random({rows, in}))), y(random({rows, out})) {}
};

/// What torch.optim.SGD makes of the mean squared error, in double.
struct Expected {
    Values parameters, losses;

    explicit Expected(const Data& data, const ls::SgdOptions& options = settings) {
        const Values x = data.x.to_vector<double>(), y = data.y.to_vector<double>();
        parameters = data.net.weight->detach().to_vector<double>();
        const Values bias = data.net.bias->detach().to_vector<double>();
        parameters.insert(parameters.end(), bias.begin(), bias.end());
        Values momentum;
        for (int step = 0; step < steps; ++step) {
            Values gradient(parameters.size());
            double loss = 0;
            for (std::size_t n = 0; n < rows; ++n)
                for (std::size_t o = 0; o < out; ++o) {
                    double error = parameters[in * out + o] - y[n * out + o];
                    for (std::size_t i = 0; i < in; ++i) error += x[n * in + i] * parameters[o * in + i];
                    loss += error * error / (rows * out);
                    for (std::size_t i = 0; i < in; ++i)
                        gradient[o * in + i] += 2 * error * x[n * in + i] / (rows * out);
                    gradient[in * out + o] += 2 * error / (rows * out);
                }
            losses.push_back(loss);
            for (std::size_t p = 0; p < parameters.size(); ++p) gradient[p] += options.weight_decay * parameters[p];
            if (options.momentum == 0) {
                momentum = gradient;
            } else if (momentum.empty()) {
                momentum = gradient;
            } else {
                for (std::size_t p = 0; p < parameters.size(); ++p)
                    momentum[p] = options.momentum * momentum[p] + (1 - options.dampening) * gradient[p];
            }
            for (std::size_t p = 0; p < parameters.size(); ++p) parameters[p] -= options.lr * momentum[p];
        }
    }
};

inline double largest_difference(const Values& a, const Values& b) {
    if (a.size() != b.size()) return INFINITY;
    double largest = 0;
    for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
    return largest;
}

inline Values parameters_of(const Regression& net) {
    Values found = net.weight->detach().to_vector<double>();
    const Values bias = net.bias->detach().to_vector<double>();
    found.insert(found.end(), bias.begin(), bias.end());
    return found;
}

/// Rounding of a few dozen operations on numbers of about 1.
constexpr double rounding = 1e-14;

}  // namespace f64_regression
