// Adagrad (Duchi, Hazan and Singer, 2011).
#pragma once

#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "lockstep/ops/optimizer.h"

namespace lockstep {

/// Options of torch.optim.Adagrad, with its defaults.
struct AdagradOptions {
    double lr = 1e-2;
    double lr_decay = 0;
    double weight_decay = 0;
    double initial_accumulator_value = 0;
    double eps = 1e-10;
    bool maximize = false;
    LOCKSTEP_MEMBERS(lr, lr_decay, weight_decay, initial_accumulator_value, eps, maximize)

    /// Throws InvalidArgument for negative numbers.
    void check() const;
};

/// Rule of Adagrad.
struct AdagradRule {
    using Options = AdagradOptions;
    static constexpr const char* name = "adagrad_update";
    static constexpr std::array<std::string_view, 1> states{"sum"};
    using Variants = std::integer_sequence<unsigned, 1>;

    /// Numbers of an update that all elements share.
    template <class T>
    struct Factors {
        T lr, weight_decay, eps;
        T initial;  ///< initial value of `sum` in the first update; otherwise 0
        bool maximize;
    };
    template <class T>
    LOCKSTEP_HD_INLINE static Factors<T> factors(const AdagradOptions& options, std::int64_t updates) {
        return {static_cast<T>(options.lr / (1 + static_cast<double>(updates) * options.lr_decay)),
                static_cast<T>(options.weight_decay), static_cast<T>(options.eps),
                static_cast<T>(updates == 0 ? options.initial_accumulator_value : 0), options.maximize};
    }
    template <class T>
    LOCKSTEP_HD_INLINE static unsigned used(const Factors<T>&) {
        return 1u;
    }
    template <class T>
    LOCKSTEP_HD_INLINE static void update(const Factors<T>& f, T gradient, T& parameter, T* state) {
        T d = f.maximize ? -gradient : gradient;
        if (f.weight_decay != 0) d += f.weight_decay * parameter;
        state[0] += f.initial + d * d;
        parameter -= f.lr * d / (std::sqrt(state[0]) + f.eps);
    }
};

/// torch.optim.Adagrad.
class Adagrad final : public FusedOptimizer<AdagradRule> {
public:
    using FusedOptimizer::FusedOptimizer;
    const char* name() const override { return "Adagrad"; }
};

}  // namespace lockstep
