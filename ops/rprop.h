// Rprop: resilient backpropagation (Riedmiller and Braun, 1993). For gradients of the whole dataset.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include "lockstep/ops/optimizer.h"

namespace lockstep {

/// Options of torch.optim.Rprop, with its defaults.
struct RpropOptions {
    double lr = 1e-2;                            ///< first step size of every element
    std::array<double, 2> etas{0.5, 1.2};        ///< factors of a step size after a change of sign, and otherwise
    std::array<double, 2> step_sizes{1e-6, 50};  ///< smallest and largest step size
    bool maximize = false;
    LOCKSTEP_MEMBERS(lr, etas, step_sizes, maximize)

    /// Throws InvalidArgument for a negative rate, and unless 0 < etas[0] < 1 < etas[1].
    void check() const;
};

/// Rule of Rprop.
struct RpropRule {
    using Options = RpropOptions;
    static constexpr const char* name = "rprop_update";
    static constexpr std::array<std::string_view, 2> states{"prev", "step_size"};
    using Variants = std::integer_sequence<unsigned, 3>;

    /// Numbers of an update that all elements share.
    template <class T>
    struct Factors {
        T lr, less, more, smallest, largest;
        bool maximize, first;
    };
    template <class T>
    LOCKSTEP_HD_INLINE static Factors<T> factors(const RpropOptions& options, std::int64_t updates) {
        return {static_cast<T>(options.lr),
                static_cast<T>(options.etas[0]),
                static_cast<T>(options.etas[1]),
                static_cast<T>(options.step_sizes[0]),
                static_cast<T>(options.step_sizes[1]),
                options.maximize,
                updates == 0};
    }
    template <class T>
    LOCKSTEP_HD_INLINE static unsigned used(const Factors<T>&) {
        return 3u;
    }
    template <class T>
    LOCKSTEP_HD_INLINE static void update(const Factors<T>& f, T gradient, T& parameter, T* state) {
        T d = f.maximize ? -gradient : gradient;
        const T same = d * state[0];
        T size = f.first ? f.lr : state[1];
        size *= same > 0 ? f.more : same < 0 ? f.less : T(1);
        size = size < f.smallest ? f.smallest : size;
        size = size > f.largest ? f.largest : size;
        if (same < 0) d = 0;
        parameter -= d > 0 ? size : d < 0 ? -size : T(0);
        state[0] = d;
        state[1] = size;
    }
};

/// torch.optim.Rprop.
class Rprop final : public FusedOptimizer<RpropRule> {
public:
    using FusedOptimizer::FusedOptimizer;
    const char* name() const override { return "Rprop"; }
};

}  // namespace lockstep
