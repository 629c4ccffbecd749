// RAdam: Adam with a rectified variance (Liu et al., 2020).
#pragma once

#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "lockstep/ops/optimizer.h"

namespace lockstep {

/// Options of torch.optim.RAdam, with its defaults.
struct RAdamOptions {
    double lr = 1e-3;
    std::array<double, 2> betas{0.9, 0.999};
    double eps = 1e-8;
    double weight_decay = 0;
    bool decoupled_weight_decay = false;  ///< as in AdamW
    bool maximize = false;
    LOCKSTEP_MEMBERS(lr, betas, eps, weight_decay, decoupled_weight_decay, maximize)

    /// Throws InvalidArgument for negative numbers and for betas that are not below 1.
    void check() const;
};

/// Rule of RAdam.
struct RAdamRule {
    using Options = RAdamOptions;
    static constexpr const char* name = "radam_update";
    static constexpr std::array<std::string_view, 2> states{"exp_avg", "exp_avg_sq"};
    using Variants = std::integer_sequence<unsigned, 3>;

    /// Numbers of an update that all elements share.
    template <class T>
    struct Factors {
        T step_size;  ///< lr / (1 - beta1^t), times the rectification if there is one
        T rest1, rest2, beta2, eps;
        T decay;  ///< factor of the weight decay, for the gradient or the parameter
        bool rectified, decoupled, maximize;
    };
    template <class T>
    LOCKSTEP_HD_INLINE static Factors<T> factors(const RAdamOptions& options, std::int64_t updates) {
        const auto t = static_cast<double>(updates + 1);
        const double beta1 = options.betas[0], beta2 = options.betas[1];
        const double correction = 1 - std::pow(beta2, t);
        // Length of the moving average, now and in the limit.
        const double limit = 2 / (1 - beta2) - 1, length = limit - 2 * t * (1 - correction) / correction;
        const bool rectified = length > 5;
        double step_size = options.lr / (1 - std::pow(beta1, t));
        if (rectified)
            step_size *= std::sqrt(correction) *
                         std::sqrt((length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length));
        return {static_cast<T>(step_size),
                static_cast<T>(1 - beta1),
                static_cast<T>(1 - beta2),
                static_cast<T>(beta2),
                static_cast<T>(options.eps),
                static_cast<T>(options.decoupled_weight_decay ? 1 - options.lr * options.weight_decay
                                                              : options.weight_decay),
                rectified,
                options.decoupled_weight_decay,
                options.maximize};
    }
    template <class T>
    LOCKSTEP_HD_INLINE static unsigned used(const Factors<T>&) {
        return 3u;
    }
    template <class T>
    LOCKSTEP_HD_INLINE static void update(const Factors<T>& f, T gradient, T& parameter, T* state) {
        T d = f.maximize ? -gradient : gradient;
        if (f.decoupled)
            parameter *= f.decay;
        else if (f.decay != 0)
            d += f.decay * parameter;
        state[0] += f.rest1 * (d - state[0]);
        state[1] = f.beta2 * state[1] + f.rest2 * d * d;
        const T change = f.step_size * state[0];
        parameter -= f.rectified ? change / (std::sqrt(state[1]) + f.eps) : change;
    }
};

/// torch.optim.RAdam.
class RAdam final : public FusedOptimizer<RAdamRule> {
public:
    using FusedOptimizer::FusedOptimizer;
    const char* name() const override { return "RAdam"; }
};

}  // namespace lockstep
