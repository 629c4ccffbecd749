// Adamax: Adam with the infinity norm (Kingma and Ba, 2015).
#pragma once

#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "lockstep/ops/optimizer.h"

namespace lockstep {

/// Options of torch.optim.Adamax, with its defaults.
struct AdamaxOptions {
    double lr = 2e-3;
    std::array<double, 2> betas{0.9, 0.999};
    double eps = 1e-8;
    double weight_decay = 0;
    bool maximize = false;
    LOCKSTEP_MEMBERS(lr, betas, eps, weight_decay, maximize)

    /// Throws InvalidArgument for negative numbers and for betas that are not below 1.
    void check() const;
};

/// Rule of Adamax.
struct AdamaxRule {
    using Options = AdamaxOptions;
    static constexpr const char* name = "adamax_update";
    static constexpr std::array<std::string_view, 2> states{"exp_avg", "exp_inf"};
    using Variants = std::integer_sequence<unsigned, 3>;

    /// Numbers of an update that all elements share.
    template <class T>
    struct Factors {
        T step_size;  ///< lr / (1 - beta1^t)
        T rest1, beta2, eps, weight_decay;
        bool maximize;
    };
    template <class T>
    LOCKSTEP_HD_INLINE static Factors<T> factors(const AdamaxOptions& options, std::int64_t updates) {
        return {static_cast<T>(options.lr / (1 - std::pow(options.betas[0], static_cast<double>(updates + 1)))),
                static_cast<T>(1 - options.betas[0]),
                static_cast<T>(options.betas[1]),
                static_cast<T>(options.eps),
                static_cast<T>(options.weight_decay),
                options.maximize};
    }
    template <class T>
    LOCKSTEP_HD_INLINE static unsigned used(const Factors<T>&) {
        return 3u;
    }
    template <class T>
    LOCKSTEP_HD_INLINE static void update(const Factors<T>& f, T gradient, T& parameter, T* state) {
        T d = f.maximize ? -gradient : gradient;
        if (f.weight_decay != 0) d += f.weight_decay * parameter;
        state[0] += f.rest1 * (d - state[0]);
        state[1] *= f.beta2;
        const T size = (d < 0 ? -d : d) + f.eps;
        if (size > state[1] || size != size) state[1] = size;  // NaN stays, as in PyTorch
        parameter -= f.step_size * state[0] / state[1];
    }
};

/// torch.optim.Adamax.
class Adamax final : public FusedOptimizer<AdamaxRule> {
public:
    using FusedOptimizer::FusedOptimizer;
    const char* name() const override { return "Adamax"; }
};

}  // namespace lockstep
