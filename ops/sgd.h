// Stochastic gradient descent.
#pragma once

#include <array>
#include <string_view>
#include <utility>

#include "lockstep/ops/optimizer.h"

namespace lockstep {

/// Options of torch.optim.SGD, with its defaults.
struct SgdOptions {
    double lr = 1e-3;
    double momentum = 0;
    double dampening = 0;
    double weight_decay = 0;
    bool nesterov = false;
    bool maximize = false;
    LOCKSTEP_MEMBERS(lr, momentum, dampening, weight_decay, nesterov, maximize)

    /// Throws InvalidArgument for negative numbers, and for Nesterov without momentum or with dampening.
    void check() const;
};

/// Rule of SGD.
struct SgdRule {
    using Options = SgdOptions;
    static constexpr const char* name = "sgd_update";
    static constexpr std::array<std::string_view, 1> states{"momentum_buffer"};
    using Variants = std::integer_sequence<unsigned, 0, 1>;

    /// Numbers of an update that all elements share.
    template <class T>
    struct Factors {
        T lr, momentum, dampening, weight_decay;
        bool nesterov, maximize, first;
    };
    template <class T>
    LOCKSTEP_HD_INLINE static Factors<T> factors(const SgdOptions& options, std::int64_t updates) {
        return {static_cast<T>(options.lr),
                static_cast<T>(options.momentum),
                static_cast<T>(options.dampening),
                static_cast<T>(options.weight_decay),
                options.nesterov,
                options.maximize,
                updates == 0};
    }
    template <class T>
    LOCKSTEP_HD_INLINE static unsigned used(const Factors<T>& f) {
        return f.momentum != 0 ? 1u : 0u;
    }
    /// The momentum begins as the first gradient, without dampening.
    template <class T>
    LOCKSTEP_HD_INLINE static void update(const Factors<T>& f, T gradient, T& parameter, T* state) {
        T d = f.maximize ? -gradient : gradient;
        if (f.weight_decay != 0) d += f.weight_decay * parameter;
        if (f.momentum != 0) {
            state[0] = f.first ? d : f.momentum * state[0] + (T(1) - f.dampening) * d;
            d = f.nesterov ? d + f.momentum * state[0] : state[0];
        }
        parameter -= f.lr * d;
    }
};

/// torch.optim.SGD, with momentum, dampening, weight decay and Nesterov's momentum.
class SGD final : public FusedOptimizer<SgdRule> {
public:
    using FusedOptimizer::FusedOptimizer;
    const char* name() const override { return "SGD"; }
};

}  // namespace lockstep
