// ASGD: averaged stochastic gradient descent (Polyak and Juditsky, 1992).
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <utility>

#include "lockstep/ops/optimizer.h"

namespace lockstep {

/// Options of torch.optim.ASGD, with its defaults.
struct AsgdOptions {
    double lr = 1e-2;
    double lambd = 1e-4;  ///< decay of the parameters, and of the rate
    double alpha = 0.75;  ///< power of the decay of the rate
    double t0 = 1e6;      ///< number of updates before the average begins
    double weight_decay = 0;
    bool maximize = false;
    LOCKSTEP_MEMBERS(lr, lambd, alpha, t0, weight_decay, maximize)

    /// Throws InvalidArgument for a negative rate or weight decay.
    void check() const;
};

/// Rule of ASGD.
struct AsgdRule {
    using Options = AsgdOptions;
    static constexpr const char* name = "asgd_update";
    static constexpr std::array<std::string_view, 1> states{"ax"};
    using Variants = std::integer_sequence<unsigned, 1>;

    /// Numbers of an update that all elements share.
    template <class T>
    struct Factors {
        T eta;  ///< the present rate
        T mu;   ///< weight of the parameter in the average
        T keep, weight_decay;
        bool maximize;
    };
    template <class T>
    LOCKSTEP_HD_INLINE static Factors<T> factors(const AsgdOptions& options, std::int64_t updates) {
        const auto before = static_cast<double>(updates);
        const double eta = options.lr / std::pow(1 + options.lambd * options.lr * before, options.alpha);
        const double averaged = before - options.t0;
        return {static_cast<T>(eta), static_cast<T>(averaged > 1 ? 1 / averaged : 1),
                static_cast<T>(1 - options.lambd * eta), static_cast<T>(options.weight_decay), options.maximize};
    }
    template <class T>
    LOCKSTEP_HD_INLINE static unsigned used(const Factors<T>&) {
        return 1u;
    }
    template <class T>
    LOCKSTEP_HD_INLINE static void update(const Factors<T>& f, T gradient, T& parameter, T* state) {
        T d = f.maximize ? -gradient : gradient;
        if (f.weight_decay != 0) d += f.weight_decay * parameter;
        parameter = parameter * f.keep - f.eta * d;
        state[0] = f.mu == 1 ? parameter : state[0] + (parameter - state[0]) * f.mu;
    }
};

/// torch.optim.ASGD. The average is the state `ax`. A new lr applies to the next update, in PyTorch to the one after
/// it.
class ASGD final : public FusedOptimizer<AsgdRule> {
public:
    using FusedOptimizer::FusedOptimizer;
    const char* name() const override { return "ASGD"; }
};

}  // namespace lockstep
