// Updates of one number in double precision, written from the pseudocode in PyTorch's documentation of each optimizer.
#pragma once

#include <algorithm>
#include <cmath>

namespace lockstep::reference {

/// Options of all optimizers, by PyTorch's names; each uses its own ones.
struct OptimizerOptions {
    double lr = 0, momentum = 0, dampening = 0, weight_decay = 0;
    double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, alpha = 0.99, lr_decay = 0, initial = 0;
    double rho = 0.9;
    bool nesterov = false, maximize = false, amsgrad = false, centered = false, decoupled = false;
};

/// One number with its state.
struct Optimized {
    double value = 0;
    double first = 0, second = 0, third = 0;
    int steps = 0;
};

inline double signed_gradient(const OptimizerOptions& o, double gradient) { return o.maximize ? -gradient : gradient; }

inline void sgd(const OptimizerOptions& o, Optimized& x, double gradient) {
    double g = signed_gradient(o, gradient) + o.weight_decay * x.value;
    if (o.momentum != 0) {
        x.first = x.steps == 0 ? g : o.momentum * x.first + (1 - o.dampening) * g;
        g = o.nesterov ? g + o.momentum * x.first : x.first;
    }
    x.value -= o.lr * g;
    ++x.steps;
}

/// `decoupled`: AdamW.
inline void adam(const OptimizerOptions& o, Optimized& x, double gradient, bool decoupled) {
    ++x.steps;
    double g = signed_gradient(o, gradient);
    if (decoupled)
        x.value -= o.lr * o.weight_decay * x.value;
    else
        g += o.weight_decay * x.value;
    x.first = o.beta1 * x.first + (1 - o.beta1) * g;
    x.second = o.beta2 * x.second + (1 - o.beta2) * g * g;
    const double mean = x.first / (1 - std::pow(o.beta1, x.steps));
    double square = x.second;
    if (o.amsgrad) square = x.third = std::max(x.third, x.second);
    x.value -= o.lr * mean / (std::sqrt(square / (1 - std::pow(o.beta2, x.steps))) + o.eps);
}

inline void rmsprop(const OptimizerOptions& o, Optimized& x, double gradient) {
    const double g = signed_gradient(o, gradient) + o.weight_decay * x.value;
    x.first = o.alpha * x.first + (1 - o.alpha) * g * g;
    double square = x.first;
    if (o.centered) {
        x.second = o.alpha * x.second + (1 - o.alpha) * g;
        square -= x.second * x.second;
    }
    double change = g / (std::sqrt(square) + o.eps);
    if (o.momentum > 0) change = x.third = o.momentum * x.third + change;
    x.value -= o.lr * change;
}

inline void adagrad(const OptimizerOptions& o, Optimized& x, double gradient) {
    const double g = signed_gradient(o, gradient) + o.weight_decay * x.value;
    if (x.steps == 0) x.first = o.initial;
    x.first += g * g;
    x.value -= o.lr / (1 + x.steps * o.lr_decay) * g / (std::sqrt(x.first) + o.eps);
    ++x.steps;
}

inline void adadelta(const OptimizerOptions& o, Optimized& x, double gradient) {
    const double g = signed_gradient(o, gradient) + o.weight_decay * x.value;
    x.first = o.rho * x.first + (1 - o.rho) * g * g;
    const double change = std::sqrt(x.second + o.eps) / std::sqrt(x.first + o.eps) * g;
    x.second = o.rho * x.second + (1 - o.rho) * change * change;
    x.value -= o.lr * change;
}

inline void adamax(const OptimizerOptions& o, Optimized& x, double gradient) {
    ++x.steps;
    const double g = signed_gradient(o, gradient) + o.weight_decay * x.value;
    x.first = o.beta1 * x.first + (1 - o.beta1) * g;
    x.second = std::max(o.beta2 * x.second, std::abs(g) + o.eps);
    x.value -= o.lr / (1 - std::pow(o.beta1, x.steps)) * x.first / x.second;
}

inline void radam(const OptimizerOptions& o, Optimized& x, double gradient) {
    ++x.steps;
    double g = signed_gradient(o, gradient);
    if (o.decoupled)
        x.value -= o.lr * o.weight_decay * x.value;
    else
        g += o.weight_decay * x.value;
    x.first = o.beta1 * x.first + (1 - o.beta1) * g;
    x.second = o.beta2 * x.second + (1 - o.beta2) * g * g;
    const double mean = x.first / (1 - std::pow(o.beta1, x.steps)), power = std::pow(o.beta2, x.steps);
    const double limit = 2 / (1 - o.beta2) - 1, length = limit - 2 * x.steps * power / (1 - power);
    if (length > 5) {
        const double rectified = std::sqrt((length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length));
        x.value -= o.lr * mean * rectified * std::sqrt(1 - power) / (std::sqrt(x.second) + o.eps);
    } else {
        x.value -= o.lr * mean;
    }
}

inline void lion(const OptimizerOptions& o, Optimized& x, double gradient) {
    const double toward = o.beta1 * x.first + (1 - o.beta1) * gradient;
    x.value -= o.lr * ((toward > 0) - (toward < 0) + o.weight_decay * x.value);
    x.first = o.beta2 * x.first + (1 - o.beta2) * gradient;
}

}  // namespace lockstep::reference
