// The arithmetic of gradients (optimizer_operations.h), which CPU loops and CUDA kernels share.
#pragma once

#include <cmath>
#include <cstdint>

#include "lockstep/ops/loss_scale.h"
#include "lockstep/runtime/host_device.h"
#include "lockstep/runtime/random.h"
#include "lockstep/runtime/status.h"

namespace lockstep::element {

/// Combination of two measures; 0 is neutral.
LOCKSTEP_HD_INLINE double join_measures(double a, double b, double order) {
    if (!std::isinf(order)) return a + b;
    return b > a || b != b ? b : a;  // NaN is preserved
}

/// Measure of one element.
LOCKSTEP_HD_INLINE double measure(double gradient, double order) {
    if (order == 2) return gradient * gradient;
    const double magnitude = std::abs(gradient);
    return order == 1 || std::isinf(order) ? magnitude : std::pow(magnitude, order);
}

/// Number of sums of squares that `measure` accumulates side by side.
constexpr int measure_lanes = 8;

/// Measure of some elements, in order.
template <class T>
LOCKSTEP_HD_INLINE double measure(const T* gradients, std::int64_t count, double order) {
    if (order != 2) {
        double all = 0;
        for (std::int64_t i = 0; i < count; ++i)
            all = join_measures(all, measure(static_cast<double>(gradients[i]), order), order);
        return all;
    }
    constexpr int lanes = measure_lanes;
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

LOCKSTEP_HD_INLINE double norm_of(double measure, double order) {
    if (order == 2) return std::sqrt(measure);
    return order == 1 || std::isinf(order) ? measure : std::pow(measure, 1 / order);
}

/// torch.nn.utils.clip_grad_norm_: factor for the gradients.
LOCKSTEP_HD_INLINE double clip_coefficient(double norm, double max_norm) {
    const double coefficient = max_norm / (norm + 1e-6);
    return coefficient > 1 ? 1 : coefficient;  // NaN is preserved
}

template <class T>
LOCKSTEP_HD_INLINE T clamp(T gradient, T most) {
    if (gradient > most) return most;
    return gradient < -most ? -most : gradient;
}

LOCKSTEP_HD_INLINE void check_norm(double norm, bool refuses, const StepCounters& step, StatusWord& agreed) {
    if (agreed.code != 0 || std::isfinite(norm)) return;
    agreed.code = static_cast<std::int32_t>(refuses ? StatusCode::gradients_not_finite : StatusCode::skipped);
    agreed.step = static_cast<std::int64_t>(step.step);
}

LOCKSTEP_HD_INLINE double unscale_factor(const LossScale& state) {
    return static_cast<double>(static_cast<float>(1 / state.scale));
}

/// torch._amp_update_scale_: products in double, rounded to f32; a scale does not grow beyond f32.
LOCKSTEP_HD_INLINE void update_loss_scale(LossScale& state, bool skipped, double growth_factor, double backoff_factor,
                                          std::int64_t growth_interval) {
    if (skipped) {
        state.scale = static_cast<double>(static_cast<float>(state.scale * backoff_factor));
        state.good_steps = 0;
        return;
    }
    if (++state.good_steps < growth_interval) return;
    constexpr double beyond_f32 = 3.4028235677973366e38;  // values that round to infinity
    if (const double grown = state.scale * growth_factor; grown < beyond_f32)
        state.scale = static_cast<double>(static_cast<float>(grown));
    state.good_steps = 0;
}

LOCKSTEP_HD_INLINE void update_loss_scale(LossScale& state, const StatusWord& agreed, double growth_factor,
                                          double backoff_factor, std::int64_t growth_interval) {
    const bool skipped = agreed.code == static_cast<std::int32_t>(StatusCode::skipped);
    if (skipped || agreed.code == 0) update_loss_scale(state, skipped, growth_factor, backoff_factor, growth_interval);
}

LOCKSTEP_HD_INLINE void clear_skip_flag(StatusWord& agreed) {
    if (agreed.code == static_cast<std::int32_t>(StatusCode::skipped)) agreed = StatusWord{};
}

}  // namespace lockstep::element
