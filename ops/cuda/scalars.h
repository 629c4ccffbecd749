// Arithmetic on elements of every dtype, on device and host.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "lockstep/ops/internal/arithmetic.h"
#include "lockstep/runtime/dtype.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace lockstep::cuda {

LOCKSTEP_HD_INLINE std::uint32_t bits_of(float value) {
    std::uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
LOCKSTEP_HD_INLINE float float_of(std::uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/// Type of the arithmetic: the two 16-bit floats are widened, the others are used directly.
template <class T>
LOCKSTEP_HD_INLINE T upcast(T value) {
    return value;
}
LOCKSTEP_HD_INLINE float upcast(BFloat16 value) { return float_of(static_cast<std::uint32_t>(value.bits) << 16); }
LOCKSTEP_HD_INLINE float upcast(Half value) {
#if defined(__CUDA_ARCH__)
    return __half2float(__ushort_as_half(value.bits));
#else
    const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
    const std::uint32_t exponent = (value.bits >> 10) & 0x1fu;
    const std::uint32_t mantissa = value.bits & 0x3ffu;
    if (exponent == 0) return float_of(sign | bits_of(static_cast<float>(mantissa) * (1.0f / 16777216.0f)));
    return float_of(sign | (exponent == 31 ? 0x7f800000u : (exponent + 112u) << 23) | (mantissa << 13));
#endif
}

template <class T>
using UpcastType = decltype(upcast(T{}));

/// `value` as a T: rounded to nearest even between floats, truncated to integers, "not zero" to bool. NaN becomes the
/// 16-bit floats' NaN of devices, 0x7fff.
template <class T>
struct CastTo {
    template <class From>
    static LOCKSTEP_HD_INLINE T from(From value) {
        return static_cast<T>(value);
    }
};
template <>
struct CastTo<bool> {
    template <class From>
    static LOCKSTEP_HD_INLINE bool from(From value) {
        return value != From(0);
    }
};
template <>
struct CastTo<BFloat16> {
    template <class From>
    static LOCKSTEP_HD_INLINE BFloat16 from(From value) {
        BFloat16 result;
#if defined(__CUDA_ARCH__)
        result.bits = __bfloat16_as_ushort(__float2bfloat16_rn(static_cast<float>(value)));
#else
        const std::uint32_t word = bits_of(static_cast<float>(value));
        result.bits = (word & 0x7fffffffu) > 0x7f800000u
                          ? std::uint16_t{0x7fff}
                          : static_cast<std::uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
#endif
        return result;
    }
};
template <>
struct CastTo<Half> {
    template <class From>
    static LOCKSTEP_HD_INLINE Half from(From value) {
        Half result;
#if defined(__CUDA_ARCH__)
        result.bits = __half_as_ushort(__float2half_rn(static_cast<float>(value)));
#else
        const std::uint32_t word = bits_of(static_cast<float>(value));
        const std::uint32_t sign = (word >> 16) & 0x8000u;
        const std::uint32_t magnitude = word & 0x7fffffffu;
        std::uint32_t rounded;
        if (magnitude > 0x7f800000u) {
            result.bits = 0x7fff;
            return result;
        }
        if (magnitude >= 0x477ff000u) {
            rounded = 0x7c00u;  // 65520 and more: infinity
        } else if (magnitude < 0x38800000u) {
            // Subnormal: adding 0.5 lets the float unit round at 2^-24.
            rounded = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
        } else {
            rounded = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
        }
        result.bits = static_cast<std::uint16_t>(sign | rounded);
#endif
        return result;
    }
};

}  // namespace lockstep::cuda
