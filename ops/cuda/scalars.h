// Elements of every dtype as numbers to compute with, on device and host alike.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "lockstep/ops/internal/arithmetic.h"
#include "lockstep/runtime/dtype.h"

namespace lockstep::cuda {

LOCKSTEP_ELEMENT std::uint32_t bits_of(float value) {
    std::uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
LOCKSTEP_ELEMENT float float_of(std::uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/// What is computed with: the two 16-bit floats are widened, the others are used as they are.
template <class T>
LOCKSTEP_ELEMENT T widen(T value) {
    return value;
}
LOCKSTEP_ELEMENT float widen(BFloat16 value) { return float_of(static_cast<std::uint32_t>(value.bits) << 16); }
LOCKSTEP_ELEMENT float widen(Half value) {
    const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
    const std::uint32_t exponent = (value.bits >> 10) & 0x1fu;
    const std::uint32_t mantissa = value.bits & 0x3ffu;
    if (exponent == 0) return float_of(sign | bits_of(static_cast<float>(mantissa) * (1.0f / 16777216.0f)));
    return float_of(sign | (exponent == 31 ? 0x7f800000u : (exponent + 112u) << 23) | (mantissa << 13));
}

template <class T>
using Widened = decltype(widen(T{}));

/// `value` as a T: rounded to nearest even between floats, cut towards zero to integers, "not zero" to bool.
template <class T>
struct Narrow {
    template <class From>
    static LOCKSTEP_ELEMENT T from(From value) {
        return static_cast<T>(value);
    }
};
template <>
struct Narrow<bool> {
    template <class From>
    static LOCKSTEP_ELEMENT bool from(From value) {
        return value != From(0);
    }
};
template <>
struct Narrow<BFloat16> {
    template <class From>
    static LOCKSTEP_ELEMENT BFloat16 from(From value) {
        const std::uint32_t word = bits_of(static_cast<float>(value));
        BFloat16 result;
        result.bits = (word & 0x7fffffffu) > 0x7f800000u
                          ? static_cast<std::uint16_t>((word >> 16) | 0x40u)
                          : static_cast<std::uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
        return result;
    }
};
template <>
struct Narrow<Half> {
    template <class From>
    static LOCKSTEP_ELEMENT Half from(From value) {
        const std::uint32_t word = bits_of(static_cast<float>(value));
        const std::uint32_t sign = (word >> 16) & 0x8000u;
        const std::uint32_t magnitude = word & 0x7fffffffu;
        std::uint32_t rounded;
        if (magnitude > 0x7f800000u) {
            rounded = 0x7e00u;  // NaN stays one, and quiet
        } else if (magnitude >= 0x477ff000u) {
            rounded = 0x7c00u;  // 65520 and more: infinity
        } else if (magnitude < 0x38800000u) {
            // Subnormal: adding 0.5 lets the float unit round at 2^-24.
            rounded = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
        } else {
            rounded = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
        }
        Half result;
        result.bits = static_cast<std::uint16_t>(sign | rounded);
        return result;
    }
};

}  // namespace lockstep::cuda
