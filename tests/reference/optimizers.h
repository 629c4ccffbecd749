// Updates of one number in double precision, written from the pseudocode in PyTorch's documentation of each optimizer;
// updates of whole parameters, written from the papers and timm's documentation.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace lockstep::reference {

/// Options of all optimizers, by PyTorch's names; each uses its own ones.
struct OptimizerOptions {
    double lr = 0, momentum = 0, dampening = 0, weight_decay = 0;
    double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, alpha = 0.99, lr_decay = 0, initial = 0;
    double rho = 0.9;
    double momentum_decay = 4e-3;
    double less = 0.5, more = 1.2, smallest = 1e-6, largest = 50;  // Rprop
    double lambd = 1e-4, power = 0.75, t0 = 1e6;                   // ASGD
    double trust = 1e-3;                                           // LARS
    bool nesterov = false, maximize = false, amsgrad = false, centered = false, decoupled = false;
    bool trust_clip = false, always_adapt = false, bias_correction = true, averaging = true;  // LARS, LAMB
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

inline void nadam(const OptimizerOptions& o, Optimized& x, double gradient) {
    ++x.steps;
    double g = signed_gradient(o, gradient);
    if (o.decoupled)
        x.value -= o.lr * o.weight_decay * x.value;
    else
        g += o.weight_decay * x.value;
    const auto momentum = [&](int t) { return o.beta1 * (1 - std::pow(0.96, t * o.momentum_decay) / 2); };
    double product = 1;
    for (int t = 1; t <= x.steps; ++t) product *= momentum(t);
    x.first = o.beta1 * x.first + (1 - o.beta1) * g;
    x.second = o.beta2 * x.second + (1 - o.beta2) * g * g;
    const double next = momentum(x.steps + 1);
    const double mean = next * x.first / (1 - product * next) + (1 - momentum(x.steps)) * g / (1 - product);
    x.value -= o.lr * mean / (std::sqrt(x.second / (1 - std::pow(o.beta2, x.steps))) + o.eps);
}

inline void rprop(const OptimizerOptions& o, Optimized& x, double gradient) {
    double g = signed_gradient(o, gradient);
    if (x.steps++ == 0) x.second = o.lr;
    if (x.first * g > 0) {
        x.second = std::min(x.second * o.more, o.largest);
    } else if (x.first * g < 0) {
        x.second = std::max(x.second * o.less, o.smallest);
        g = 0;
    }
    x.value -= x.second * ((g > 0) - (g < 0));
    x.first = g;
}

/// `first`: the average.
inline void asgd(const OptimizerOptions& o, Optimized& x, double gradient) {
    const double eta = o.lr / std::pow(1 + o.lambd * o.lr * x.steps, o.power);
    const double g = signed_gradient(o, gradient) + o.weight_decay * x.value;
    x.value -= o.lambd * eta * x.value + eta * g;
    x.first += (x.value - x.first) / std::max(1.0, x.steps - o.t0);
    ++x.steps;
}

inline void lion(const OptimizerOptions& o, Optimized& x, double gradient) {
    const double toward = o.beta1 * x.first + (1 - o.beta1) * gradient;
    x.value -= o.lr * ((toward > 0) - (toward < 0) + o.weight_decay * x.value);
    x.first = o.beta2 * x.first + (1 - o.beta2) * gradient;
}

inline double norm(const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value * value;
    return std::sqrt(sum);
}

inline double norm(const std::vector<Optimized>& x) {
    std::vector<double> values;
    for (const Optimized& each : x) values.push_back(each.value);
    return norm(values);
}

inline void lars(const OptimizerOptions& o, std::vector<Optimized>& x, const std::vector<double>& gradients) {
    const double of_x = norm(x), of_gradient = norm(gradients);
    double ratio = 1;
    if (o.weight_decay != 0 || o.always_adapt) {
        if (of_x > 0 && of_gradient > 0) ratio = o.trust * of_x / (of_gradient + of_x * o.weight_decay + o.eps);
        if (o.trust_clip) ratio = std::min(ratio / o.lr, 1.0);
    }
    for (std::size_t i = 0; i < x.size(); ++i) {
        double g = (signed_gradient(o, gradients[i]) + o.weight_decay * x[i].value) * ratio;
        if (o.momentum != 0) {
            x[i].first = x[i].steps == 0 ? g : o.momentum * x[i].first + (1 - o.dampening) * g;
            g = o.nesterov ? g + o.momentum * x[i].first : x[i].first;
        }
        x[i].value -= o.lr * g;
        ++x[i].steps;
    }
}

inline void lamb(const OptimizerOptions& o, std::vector<Optimized>& x, const std::vector<double>& gradients) {
    std::vector<double> direction;
    for (std::size_t i = 0; i < x.size(); ++i) {
        ++x[i].steps;
        const double g = signed_gradient(o, gradients[i]);
        x[i].first = o.beta1 * x[i].first + (o.averaging ? 1 - o.beta1 : 1) * g;
        x[i].second = o.beta2 * x[i].second + (1 - o.beta2) * g * g;
        const double correction1 = o.bias_correction ? 1 - std::pow(o.beta1, x[i].steps) : 1;
        const double correction2 = o.bias_correction ? 1 - std::pow(o.beta2, x[i].steps) : 1;
        direction.push_back(x[i].first / correction1 / (std::sqrt(x[i].second / correction2) + o.eps) +
                            o.weight_decay * x[i].value);
    }
    const double of_x = norm(x), of_direction = norm(direction);
    double ratio = 1;
    if ((o.weight_decay != 0 || o.always_adapt) && of_x > 0 && of_direction > 0) ratio = of_x / of_direction;
    if (o.trust_clip) ratio = std::min(ratio, 1.0);
    for (std::size_t i = 0; i < x.size(); ++i) x[i].value -= o.lr * ratio * direction[i];
}

}  // namespace lockstep::reference
