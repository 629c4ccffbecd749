// LARS: SGD with a rate for every layer (You, Gitman and Ginsburg, 2017).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include "lockstep/ops/optimizer.h"

namespace lockstep {

/// Options of timm.optim.Lars, with its defaults.
struct LarsOptions {
    double lr = 1;
    double momentum = 0;
    double dampening = 0;
    double weight_decay = 0;
    double trust_coefficient = 1e-3;  ///< timm's trust_coeff
    double eps = 1e-8;
    bool nesterov = false;
    bool trust_clip = false;    ///< the rate is at most lr, and the trust ratio is divided by lr first
    bool always_adapt = false;  ///< false: groups without weight decay are updated as by SGD
    bool maximize = false;
    LOCKSTEP_MEMBERS(lr, momentum, dampening, weight_decay, trust_coefficient, eps, nesterov, trust_clip, always_adapt,
                     maximize)

    /// Throws InvalidArgument for negative numbers, and for Nesterov without momentum or with dampening.
    void check() const;
};

/// Rule of LARS.
struct LarsRule {
    using Options = LarsOptions;
    static constexpr const char* name = "lars_update";
    static constexpr std::array<std::string_view, 1> states{"momentum_buffer"};
    using Variants = std::integer_sequence<unsigned, 0, 1>;
    static constexpr bool needs_norms = true;

    /// Numbers of an update that all elements share.
    template <class T>
    struct Factors {
        T lr, momentum, dampening, weight_decay, trust;
        bool nesterov, maximize, first;
    };
    LOCKSTEP_HD_INLINE static double trust_ratio(const LarsOptions& options, const ParameterNorms& norms) {
        double ratio = 1;
        if (norms.parameter > 0 && norms.direction > 0)
            ratio = options.trust_coefficient * norms.parameter /
                    (norms.direction + norms.parameter * options.weight_decay + options.eps);
        if (options.trust_clip && ratio > options.lr) return 1;
        return options.trust_clip ? ratio / options.lr : ratio;
    }
    template <class T>
    LOCKSTEP_HD_INLINE static Factors<T> factors(const LarsOptions& options, std::int64_t updates,
                                                 const ParameterNorms& norms = {}) {
        const bool adapts = options.weight_decay != 0 || options.always_adapt;
        return {static_cast<T>(options.lr),
                static_cast<T>(options.momentum),
                static_cast<T>(options.dampening),
                static_cast<T>(options.weight_decay),
                static_cast<T>(adapts ? trust_ratio(options, norms) : 1),
                options.nesterov,
                options.maximize,
                updates == 0};
    }
    template <class T>
    LOCKSTEP_HD_INLINE static unsigned used(const Factors<T>& f) {
        return f.momentum != 0 ? 1u : 0u;
    }
    template <class T>
    LOCKSTEP_HD_INLINE static T direction(const Factors<T>&, T gradient, T, const T*) {
        return gradient;
    }
    /// As in SGD, the momentum begins as the first gradient, without dampening.
    template <class T>
    LOCKSTEP_HD_INLINE static void update(const Factors<T>& f, T gradient, T& parameter, T* state) {
        T d = f.maximize ? -gradient : gradient;
        if (f.weight_decay != 0) d += f.weight_decay * parameter;
        d *= f.trust;
        if (f.momentum != 0) {
            state[0] = f.first ? d : f.momentum * state[0] + (T(1) - f.dampening) * d;
            d = f.nesterov ? d + f.momentum * state[0] : state[0];
        }
        parameter -= f.lr * d;
    }
};

/// LARS with timm's order of operations: the gradient with weight decay is multiplied by the trust ratio
/// trust_coefficient * |w| / (|g| + weight_decay * |w| + eps) of its parameter, before momentum.
class LARS final : public FusedOptimizer<LarsRule> {
public:
    using FusedOptimizer::FusedOptimizer;
    const char* name() const override { return "LARS"; }
};

}  // namespace lockstep
