// Adadelta (Zeiler, 2012).
#pragma once

#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "lockstep/ops/optimizer.h"

namespace lockstep {

/// Options of torch.optim.Adadelta, with its defaults.
struct AdadeltaOptions {
    double lr = 1;
    double rho = 0.9;
    double eps = 1e-6;
    double weight_decay = 0;
    bool maximize = false;
    LOCKSTEP_MEMBERS(lr, rho, eps, weight_decay, maximize)

    /// Throws InvalidArgument for negative numbers and for a rho above 1.
    void check() const;
};

/// Rule of Adadelta.
struct AdadeltaRule {
    using Options = AdadeltaOptions;
    static constexpr const char* name = "adadelta_update";
    static constexpr std::array<std::string_view, 2> states{"square_avg", "acc_delta"};
    using Variants = std::integer_sequence<unsigned, 3>;

    /// Numbers of an update that all elements share.
    template <class T>
    struct Factors {
        T lr, rho, rest, eps, weight_decay;
        bool maximize;
    };
    template <class T>
    LOCKSTEP_HD_INLINE static Factors<T> factors(const AdadeltaOptions& options, std::int64_t) {
        return {static_cast<T>(options.lr),  static_cast<T>(options.rho),          static_cast<T>(1 - options.rho),
                static_cast<T>(options.eps), static_cast<T>(options.weight_decay), options.maximize};
    }
    template <class T>
    LOCKSTEP_HD_INLINE static unsigned used(const Factors<T>&) {
        return 3u;
    }
    template <class T>
    LOCKSTEP_HD_INLINE static void update(const Factors<T>& f, T gradient, T& parameter, T* state) {
        T d = f.maximize ? -gradient : gradient;
        if (f.weight_decay != 0) d += f.weight_decay * parameter;
        state[0] = f.rho * state[0] + f.rest * d * d;
        const T delta = std::sqrt(state[1] + f.eps) / std::sqrt(state[0] + f.eps) * d;
        state[1] = f.rho * state[1] + f.rest * delta * delta;
        parameter -= f.lr * delta;
    }
};

/// torch.optim.Adadelta.
class Adadelta final : public FusedOptimizer<AdadeltaRule> {
public:
    using FusedOptimizer::FusedOptimizer;
    const char* name() const override { return "Adadelta"; }
};

}  // namespace lockstep
