// LAMB: Adam with a rate for every layer (You et al., 2020).
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <utility>

#include "lockstep/ops/optimizer.h"

namespace lockstep {

/// Options of timm.optim.Lamb, with its defaults, except max_grad_norm: ClipGradNorm clips.
struct LambOptions {
    double lr = 1e-3;
    std::array<double, 2> betas{0.9, 0.999};
    double eps = 1e-6;
    double weight_decay = 0.01;
    bool bias_correction = true;
    bool grad_averaging = true;  ///< false: the gradient is added to its moving average without the factor 1 - betas[0]
    bool trust_clip = false;     ///< the trust ratio is at most 1
    bool always_adapt = false;   ///< false: groups without weight decay have no trust ratio
    bool maximize = false;
    LOCKSTEP_MEMBERS(lr, betas, eps, weight_decay, bias_correction, grad_averaging, trust_clip, always_adapt, maximize)

    /// Throws InvalidArgument for negative numbers and for betas that are not below 1.
    void check() const;
};

/// Rule of LAMB.
struct LambRule {
    using Options = LambOptions;
    static constexpr const char* name = "lamb_update";
    static constexpr std::array<std::string_view, 2> states{"exp_avg", "exp_avg_sq"};
    using Variants = std::integer_sequence<unsigned, 3>;
    static constexpr bool needs_norms = true;

    /// Numbers of an update that all elements share.
    template <class T>
    struct Factors {
        T step_size;  ///< lr times the trust ratio
        T beta1, rest1, beta2, rest2, correction1, root2, eps, weight_decay;
        bool maximize;
    };
    template <class T>
    LOCKSTEP_HD_INLINE static Factors<T> factors(const LambOptions& options, std::int64_t updates,
                                                 const ParameterNorms& norms = {}) {
        const auto t = static_cast<double>(updates + 1);
        const double beta1 = options.betas[0], beta2 = options.betas[1];
        double trust = 1;
        if ((options.weight_decay != 0 || options.always_adapt) && norms.parameter > 0 && norms.direction > 0)
            trust = norms.parameter / norms.direction;
        if (options.trust_clip && trust > 1) trust = 1;
        return {static_cast<T>(options.lr * trust),
                static_cast<T>(beta1),
                static_cast<T>(options.grad_averaging ? 1 - beta1 : 1),
                static_cast<T>(beta2),
                static_cast<T>(1 - beta2),
                static_cast<T>(options.bias_correction ? 1 - std::pow(beta1, t) : 1),
                static_cast<T>(options.bias_correction ? std::sqrt(1 - std::pow(beta2, t)) : 1),
                static_cast<T>(options.eps),
                static_cast<T>(options.weight_decay),
                options.maximize};
    }
    template <class T>
    LOCKSTEP_HD_INLINE static unsigned used(const Factors<T>&) {
        return 3u;
    }
    template <class T>
    LOCKSTEP_HD_INLINE static void average(const Factors<T>& f, T gradient, T& mean, T& square) {
        const T d = f.maximize ? -gradient : gradient;
        mean = f.beta1 * mean + f.rest1 * d;
        square = f.beta2 * square + f.rest2 * d * d;
    }
    /// Adam's step, without rate, from the new averages.
    template <class T>
    LOCKSTEP_HD_INLINE static T adam_step(const Factors<T>& f, T parameter, T mean, T square) {
        return mean / f.correction1 / (std::sqrt(square) / f.root2 + f.eps) + f.weight_decay * parameter;
    }
    template <class T>
    LOCKSTEP_HD_INLINE static T direction(const Factors<T>& f, T gradient, T parameter, const T* state) {
        T mean = state[0], square = state[1];
        average(f, gradient, mean, square);
        return adam_step(f, parameter, mean, square);
    }
    template <class T>
    LOCKSTEP_HD_INLINE static void update(const Factors<T>& f, T gradient, T& parameter, T* state) {
        average(f, gradient, state[0], state[1]);
        parameter -= f.step_size * adam_step(f, parameter, state[0], state[1]);
    }
};

/// LAMB with timm's order of operations: Adam's step u with weight decay, times the trust ratio |w| / |u| of its
/// parameter.
class LAMB final : public FusedOptimizer<LambRule> {
public:
    using FusedOptimizer::FusedOptimizer;
    const char* name() const override { return "LAMB"; }
};

}  // namespace lockstep
