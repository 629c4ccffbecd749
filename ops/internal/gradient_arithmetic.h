// The arithmetic of gradient_operations.h, which CPU loops and CUDA kernels share.
#pragma once

#include <cmath>
#include <cstdint>

#include "lockstep/runtime/element.h"
#include "lockstep/runtime/random.h"
#include "lockstep/runtime/status.h"

namespace lockstep::element {

/// What two measures come to together; 0 is neutral.
LOCKSTEP_ELEMENT double join_measures(double a, double b, double order) {
    if (!std::isinf(order)) return a + b;
    return b > a || b != b ? b : a;  // NaN stays
}

/// Of one element.
LOCKSTEP_ELEMENT double measure(double gradient, double order) {
    if (order == 2) return gradient * gradient;
    const double magnitude = std::abs(gradient);
    return order == 1 || std::isinf(order) ? magnitude : std::pow(magnitude, order);
}

/// Of some elements, in their order.
template <class T>
LOCKSTEP_ELEMENT double measure(const T* gradients, std::int64_t count, double order) {
    if (order != 2) {
        double all = 0;
        for (std::int64_t i = 0; i < count; ++i)
            all = join_measures(all, measure(static_cast<double>(gradients[i]), order), order);
        return all;
    }
    constexpr int lanes = 8;  // what is added several at a time
    double sums[lanes] = {};
    for (std::int64_t i = 0; i < count; i += lanes)
        for (int j = 0; j < lanes; ++j) {
            const double gradient = i + j < count ? static_cast<double>(gradients[i + j]) : 0.0;
            sums[j] += gradient * gradient;
        }
    for (int half = lanes / 2; half > 0; half /= 2)
        for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
    return sums[0];
}

LOCKSTEP_ELEMENT double norm_of(double measure, double order) {
    if (order == 2) return std::sqrt(measure);
    return order == 1 || std::isinf(order) ? measure : std::pow(measure, 1 / order);
}

/// torch.nn.utils.clip_grad_norm_: what gradients are multiplied by.
LOCKSTEP_ELEMENT double clip_coefficient(double norm, double max_norm) {
    const double coefficient = max_norm / (norm + 1e-6);
    return coefficient > 1 ? 1 : coefficient;  // NaN stays
}

template <class T>
LOCKSTEP_ELEMENT T clamp(T gradient, T most) {
    if (gradient > most) return most;
    return gradient < -most ? -most : gradient;
}

LOCKSTEP_ELEMENT void judge(double norm, bool refuses, const StepState& step, StatusWord& agreed) {
    if (agreed.code != 0 || std::isfinite(norm)) return;
    agreed.code = static_cast<std::int32_t>(refuses ? StatusCode::gradients_not_finite : StatusCode::skipped);
    agreed.step = static_cast<std::int64_t>(step.step);
}

LOCKSTEP_ELEMENT void forget_skip(StatusWord& agreed) {
    if (agreed.code == static_cast<std::int32_t>(StatusCode::skipped)) agreed = StatusWord{};
}

}  // namespace lockstep::element
