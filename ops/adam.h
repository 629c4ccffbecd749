// Adam (Kingma and Ba, 2015) and AdamW (Loshchilov and Hutter, 2019).
#pragma once

#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "lockstep/ops/optimizer.h"

namespace lockstep {

/// Options of torch.optim.Adam, with its defaults.
struct AdamOptions {
    double lr = 1e-3;
    std::array<double, 2> betas{0.9, 0.999};
    double eps = 1e-8;
    double weight_decay = 0;  ///< added to the gradient
    bool amsgrad = false;
    bool maximize = false;
    LOCKSTEP_MEMBERS(lr, betas, eps, weight_decay, amsgrad, maximize)

    /// Throws InvalidArgument for negative numbers and for betas that are not below 1.
    void check() const;
};

/// Options of torch.optim.AdamW, with its defaults.
struct AdamWOptions {
    double lr = 1e-3;
    std::array<double, 2> betas{0.9, 0.999};
    double eps = 1e-8;
    double weight_decay = 1e-2;  ///< multiplies the parameter by 1 - lr * weight_decay, independently of the gradient
    bool amsgrad = false;
    bool maximize = false;
    LOCKSTEP_MEMBERS(lr, betas, eps, weight_decay, amsgrad, maximize)

    /// As AdamOptions.
    void check() const;
};

/// Rule of both: weight decay as in Adam, or as in AdamW (`decoupled`).
template <class AnyOptions, bool decoupled>
struct AdamRuleFor {
    using Options = AnyOptions;
    static constexpr const char* name = decoupled ? "adamw_update" : "adam_update";
    static constexpr std::array<std::string_view, 3> states{"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
    using Variants = std::integer_sequence<unsigned, 3, 7>;

    /// Numbers of an update that all elements share.
    template <class T>
    struct Factors {
        T step_size;        ///< lr / (1 - beta1^t)
        T root_correction;  ///< sqrt(1 - beta2^t)
        T rest1, rest2;     ///< 1 - beta
        T beta2, eps;
        T decay;  ///< factor of the weight decay, for the gradient or the parameter
        bool amsgrad, maximize;
    };
    template <class T>
    LOCKSTEP_HD_INLINE static Factors<T> factors(const Options& options, std::int64_t updates) {
        const auto t = static_cast<double>(updates + 1);
        const double beta1 = options.betas[0], beta2 = options.betas[1];
        return {static_cast<T>(options.lr / (1 - std::pow(beta1, t))),
                static_cast<T>(std::sqrt(1 - std::pow(beta2, t))),
                static_cast<T>(1 - beta1),
                static_cast<T>(1 - beta2),
                static_cast<T>(beta2),
                static_cast<T>(options.eps),
                static_cast<T>(decoupled ? 1 - options.lr * options.weight_decay : options.weight_decay),
                options.amsgrad,
                options.maximize};
    }
    template <class T>
    LOCKSTEP_HD_INLINE static unsigned used(const Factors<T>& f) {
        return f.amsgrad ? 7u : 3u;
    }
    template <class T>
    LOCKSTEP_HD_INLINE static void update(const Factors<T>& f, T gradient, T& parameter, T* state) {
        T d = f.maximize ? -gradient : gradient;
        if constexpr (decoupled)
            parameter *= f.decay;
        else if (f.decay != 0)
            d += f.decay * parameter;
        state[0] += f.rest1 * (d - state[0]);
        state[1] = f.beta2 * state[1] + f.rest2 * d * d;
        T square = state[1];
        if (f.amsgrad) {
            if (state[2] > square || state[2] != state[2]) square = state[2];  // NaN stays, as in PyTorch
            state[2] = square;
        }
        parameter -= f.step_size * state[0] / (std::sqrt(square) / f.root_correction + f.eps);
    }
};
using AdamRule = AdamRuleFor<AdamOptions, false>;
using AdamWRule = AdamRuleFor<AdamWOptions, true>;

/// torch.optim.Adam, with amsgrad.
class Adam final : public FusedOptimizer<AdamRule> {
public:
    using FusedOptimizer::FusedOptimizer;
    const char* name() const override { return "Adam"; }
};

/// torch.optim.AdamW, with amsgrad.
class AdamW final : public FusedOptimizer<AdamWRule> {
public:
    using FusedOptimizer::FusedOptimizer;
    const char* name() const override { return "AdamW"; }
};

}  // namespace lockstep
