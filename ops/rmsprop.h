// RMSprop (Tieleman and Hinton, 2012), also centered (Graves, 2013).
#pragma once

#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "lockstep/ops/optimizer.h"

namespace lockstep {

/// Options of torch.optim.RMSprop, with its defaults.
struct RmspropOptions {
    double lr = 1e-2;
    double alpha = 0.99;
    double eps = 1e-8;
    double weight_decay = 0;
    double momentum = 0;
    bool centered = false;
    bool maximize = false;
    LOCKSTEP_MEMBERS(lr, alpha, eps, weight_decay, momentum, centered, maximize)

    /// Throws InvalidArgument for negative numbers.
    void check() const;
};

/// Rule of RMSprop.
struct RmspropRule {
    using Options = RmspropOptions;
    static constexpr const char* name = "rmsprop_update";
    static constexpr std::array<std::string_view, 3> states{"square_avg", "momentum_buffer", "grad_avg"};
    using Variants = std::integer_sequence<unsigned, 1, 3, 5, 7>;

    /// Numbers of an update that all elements share.
    template <class T>
    struct Factors {
        T lr, alpha, rest, eps, weight_decay, momentum;
        bool centered, maximize;
    };
    template <class T>
    LOCKSTEP_HD_INLINE static Factors<T> factors(const RmspropOptions& options, std::int64_t) {
        return {static_cast<T>(options.lr),
                static_cast<T>(options.alpha),
                static_cast<T>(1 - options.alpha),
                static_cast<T>(options.eps),
                static_cast<T>(options.weight_decay),
                static_cast<T>(options.momentum),
                options.centered,
                options.maximize};
    }
    template <class T>
    LOCKSTEP_HD_INLINE static unsigned used(const Factors<T>& f) {
        return 1u | (f.momentum > 0 ? 2u : 0u) | (f.centered ? 4u : 0u);
    }
    template <class T>
    LOCKSTEP_HD_INLINE static void update(const Factors<T>& f, T gradient, T& parameter, T* state) {
        T d = f.maximize ? -gradient : gradient;
        if (f.weight_decay != 0) d += f.weight_decay * parameter;
        state[0] = f.alpha * state[0] + f.rest * d * d;
        T square = state[0];
        if (f.centered) {
            state[2] += f.rest * (d - state[2]);
            square -= state[2] * state[2];
        }
        const T change = d / (std::sqrt(square) + f.eps);
        if (f.momentum > 0) {
            state[1] = f.momentum * state[1] + change;
            parameter -= f.lr * state[1];
        } else {
            parameter -= f.lr * change;
        }
    }
};

/// torch.optim.RMSprop, with momentum and centered.
class RMSprop final : public FusedOptimizer<RmspropRule> {
public:
    using FusedOptimizer::FusedOptimizer;
    const char* name() const override { return "RMSprop"; }
};

}  // namespace lockstep
