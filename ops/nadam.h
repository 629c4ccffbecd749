// NAdam: Adam with Nesterov's momentum (Dozat, 2016).
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <utility>

#include "lockstep/ops/optimizer.h"

namespace lockstep {

/// Options of torch.optim.NAdam, with its defaults.
struct NAdamOptions {
    double lr = 2e-3;
    std::array<double, 2> betas{0.9, 0.999};
    double eps = 1e-8;
    double weight_decay = 0;
    double momentum_decay = 4e-3;
    bool decoupled_weight_decay = false;  ///< as in AdamW
    bool maximize = false;
    LOCKSTEP_MEMBERS(lr, betas, eps, weight_decay, momentum_decay, decoupled_weight_decay, maximize)

    /// Throws InvalidArgument for negative numbers and for betas that are not below 1.
    void check() const;
};

/// Rule of NAdam.
struct NAdamRule {
    using Options = NAdamOptions;
    static constexpr const char* name = "nadam_update";
    static constexpr std::array<std::string_view, 2> states{"exp_avg", "exp_avg_sq"};
    using Variants = std::integer_sequence<unsigned, 3>;

    /// Numbers of an update that all elements share.
    template <class T>
    struct Factors {
        T of_gradient, of_mean;  ///< lr times the weights of the gradient and of its moving average
        T rest1, rest2, beta2, correction2, eps;
        T decay;  ///< factor of the weight decay, for the gradient or the parameter
        bool decoupled, maximize;
    };
    /// Momentum of update t.
    LOCKSTEP_HD_INLINE static double momentum(const NAdamOptions& options, double t) {
        return options.betas[0] * (1 - 0.5 * std::pow(0.96, t * options.momentum_decay));
    }
    /// Product of the momenta of updates 1 to t (PyTorch's state mu_product), from the series of
    /// log(1 - x / 2) = -(x / 2 + x^2 / 8 + ...), whose sums over the updates are geometric.
    LOCKSTEP_HD_INLINE static double product_of_momenta(const NAdamOptions& options, double t) {
        const double log_ratio = options.momentum_decay * std::log(0.96);
        double sum = 0, power = 1;
        for (int k = 1; k <= 60; ++k) {  // until 2^-k is below the precision of a double
            power /= 2;
            const double updates =
                log_ratio == 0 ? t
                               : std::exp(k * log_ratio) * std::expm1(k * t * log_ratio) / std::expm1(k * log_ratio);
            sum += power / k * updates;
        }
        return std::pow(options.betas[0], t) * std::exp(-sum);
    }
    template <class T>
    LOCKSTEP_HD_INLINE static Factors<T> factors(const NAdamOptions& options, std::int64_t updates) {
        const auto t = static_cast<double>(updates + 1);
        const double now = momentum(options, t), next = momentum(options, t + 1);
        const double product = product_of_momenta(options, t);
        return {static_cast<T>(options.lr * (1 - now) / (1 - product)),
                static_cast<T>(options.lr * next / (1 - product * next)),
                static_cast<T>(1 - options.betas[0]),
                static_cast<T>(1 - options.betas[1]),
                static_cast<T>(options.betas[1]),
                static_cast<T>(1 - std::pow(options.betas[1], t)),
                static_cast<T>(options.eps),
                static_cast<T>(options.decoupled_weight_decay ? 1 - options.lr * options.weight_decay
                                                              : options.weight_decay),
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
        const T size = std::sqrt(state[1] / f.correction2) + f.eps;
        parameter -= f.of_gradient * d / size;
        parameter -= f.of_mean * state[0] / size;
    }
};

/// torch.optim.NAdam. The product of past momenta is computed from the present options, so a change of betas[0] or
/// momentum_decay also applies to the momenta of earlier updates.
class NAdam final : public FusedOptimizer<NAdamRule> {
public:
    using FusedOptimizer::FusedOptimizer;
    const char* name() const override { return "NAdam"; }
};

}  // namespace lockstep
