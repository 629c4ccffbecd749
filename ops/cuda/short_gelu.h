// GELU for 16-bit elements: erfc with the accuracy of f32 takes longer than their memory traffic.
#pragma once

#include <cmath>
#include <type_traits>

#include "lockstep/ops/internal/unary_functions.h"
#include "lockstep/runtime/dtype.h"
#include "lockstep/runtime/host_device.h"

namespace lockstep::cuda {

/// functor::Gelu with a relative error of the normal distribution below 2^-15, an eighth of f16's rounding error.
struct ShortGelu {
    explicit ShortGelu(const functor::Gelu&) {}

    struct Normal {
        float cdf, power;  // the latter is exp(-x * x / 2)
    };
    static LOCKSTEP_HD_INLINE Normal normal(float x) {
        // The probability of less than -|x|, divided by the power, is nearly a polynomial of t (least relative error).
        const float power = std::exp2(x * x * float(-0.5 * M_LOG2E)), y = std::fma(0.365f, std::fabs(x), 1.0f);
#if defined(__CUDA_ARCH__)
        const float root = rsqrtf(y), t = root * root;  // approximate, unlike a division
#else
        const float t = 1.0f / y;
#endif
        float tail = -0.0968540683f;
        for (const float coefficient : {0.2379083335f, 0.0505343936f, 0.1651657224f, 0.1431136876f, 0.0001243092f})
            tail = std::fma(tail, t, coefficient);
        tail *= power;
        return {x > 0 ? 1 - tail : tail, power};
    }
    LOCKSTEP_HD_INLINE float value(float x) const { return x * normal(x).cdf; }
    LOCKSTEP_HD_INLINE float gradient(float dy, float x) const {
        const Normal at = normal(x);
        return dy * std::fma(x * float(0.5 * M_2_SQRTPI * M_SQRT1_2), at.power, at.cdf);
    }
};

/// The function that computes F of elements of type T.
template <class F, class T>
using FunctionOf = std::conditional_t<std::is_same_v<F, functor::Gelu> && sizeof(T) == 2, ShortGelu, F>;

}  // namespace lockstep::cuda
