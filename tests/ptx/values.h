// Values in slots, and the conversions and roundings of PTX.
#pragma once

#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "lockstep/tests/ptx/program.h"

namespace lockstep::ptx {

/// A 16-bit float with `mantissa_bits` bits after the binary point.
template <int mantissa_bits>
struct HalfFloat {
    std::uint16_t bits = 0;
};
using Half = HalfFloat<10>;
using BFloat = HalfFloat<7>;
/// Two of them in one register.
template <class T>
struct Pair {
    T low, high;
};

template <class T>
inline constexpr bool is_half = std::is_same_v<T, Half> || std::is_same_v<T, BFloat>;
template <class T>
inline constexpr bool is_float = std::is_floating_point_v<T> || is_half<T>;

template <class T>
struct PairElement {};
template <class T>
struct PairElement<Pair<T>> {
    using type = T;
};

template <class T>
T read(Slot slot) {
    if constexpr (std::is_same_v<T, bool>) {
        return (slot & 1) != 0;
    } else if constexpr (std::is_same_v<T, float>) {
        return std::bit_cast<float>(static_cast<std::uint32_t>(slot));
    } else if constexpr (std::is_same_v<T, double>) {
        return std::bit_cast<double>(slot);
    } else if constexpr (is_half<T>) {
        return T{static_cast<std::uint16_t>(slot)};
    } else if constexpr (std::is_integral_v<T>) {
        return static_cast<T>(slot);
    } else {
        using Element = typename PairElement<T>::type;
        return T{read<Element>(slot), read<Element>(slot >> 16)};
    }
}

template <class T>
Slot write(T value) {
    if constexpr (std::is_same_v<T, bool>) {
        return value ? 1 : 0;
    } else if constexpr (std::is_same_v<T, float>) {
        return std::bit_cast<std::uint32_t>(value);
    } else if constexpr (std::is_same_v<T, double>) {
        return std::bit_cast<std::uint64_t>(value);
    } else if constexpr (is_half<T>) {
        return value.bits;
    } else if constexpr (std::is_integral_v<T>) {
        return static_cast<Slot>(static_cast<std::make_unsigned_t<T>>(value));
    } else {
        return write(value.low) | write(value.high) << 16;
    }
}

/// Exact.
template <int mantissa_bits>
double upcast(HalfFloat<mantissa_bits> value) {
    constexpr int exponent_bits = 15 - mantissa_bits, bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (value.bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const int mantissa = value.bits & ((1 << mantissa_bits) - 1);
    double result = 0;
    if (exponent == (1 << exponent_bits) - 1) {
        result = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
    } else if (exponent == 0) {
        result = std::ldexp(mantissa, 1 - bias - mantissa_bits);
    } else {
        const auto bits = static_cast<std::uint64_t>(exponent - bias + 1023) << 52 |
                          static_cast<std::uint64_t>(mantissa) << (52 - mantissa_bits);
        result = std::bit_cast<double>(bits);
    }
    return (value.bits & 0x8000) != 0 ? -result : result;
}
inline double upcast(float value) { return static_cast<double>(value); }
inline double upcast(double value) { return value; }

/// Rounds to nearest even, or towards zero. NaN becomes PTX's canonical NaN.
template <int mantissa_bits>
HalfFloat<mantissa_bits> downcast_to(double value, bool towards_zero = false) {
    constexpr int exponent_bits = 15 - mantissa_bits, bias = (1 << (exponent_bits - 1)) - 1;
    constexpr std::uint64_t infinity = std::uint64_t{(1 << exponent_bits) - 1} << mantissa_bits;
    if (std::isnan(value)) return {0x7fff};
    const auto bits = std::bit_cast<std::uint64_t>(value);
    const int exponent = static_cast<int>((bits >> 52) & 0x7ff) - 1023;
    std::uint64_t rounded = 0;
    if (exponent > bias) {
        rounded = std::isinf(value) || !towards_zero ? infinity : infinity - 1;
    } else if (exponent > -1023) {
        const std::uint64_t mantissa = (bits & ((std::uint64_t{1} << 52) - 1)) | std::uint64_t{1} << 52;
        const int lowest = 1 - bias;  // exponent of subnormal numbers
        const int shift = 52 - mantissa_bits + (exponent < lowest ? lowest - exponent : 0);
        if (shift < 54) {
            const std::uint64_t rest = mantissa & ((std::uint64_t{1} << shift) - 1),
                                middle = std::uint64_t{1} << (shift - 1);
            rounded = mantissa >> shift;
            if (!towards_zero && (rest > middle || (rest == middle && (rounded & 1) != 0))) ++rounded;
            // The leading bit of the mantissa adds one to the exponent.
            if (exponent >= lowest) rounded += static_cast<std::uint64_t>(exponent - lowest) << mantissa_bits;
        }
    }
    return {static_cast<std::uint16_t>(rounded | (std::signbit(value) ? 0x8000u : 0u))};
}

template <class To>
To downcast(double value) {
    if constexpr (std::is_same_v<To, Half>) {
        return downcast_to<10>(value);
    } else if constexpr (std::is_same_v<To, BFloat>) {
        return downcast_to<7>(value);
    } else {
        return static_cast<To>(value);
    }
}

/// x + y rounded to odd: rounding the result to fewer bits is then as rounding the exact sum.
inline double sum_to_odd(double x, double y) {
    const double sum = x + y, from_y = sum - x;
    const double error = (x - (sum - from_y)) + (y - from_y);
    if (error == 0 || !std::isfinite(sum) || (std::bit_cast<std::uint64_t>(sum) & 1) != 0) return sum;
    return std::nextafter(
        sum, error > 0 ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity());
}

/// f(a...) in a rounding mode of <cfenv>.
template <int mode, class F, class T, class... More>
T rounded(F f, T first, More... more) {
    // Volatile keeps the compiler from moving the operation out of the two calls.
    volatile T operand = first;
    const int before = std::fegetround();
    std::fesetround(mode);
    volatile T result = f(T{operand}, more...);
    std::fesetround(before);
    return result;
}

/// PTX's float to integer: saturates, and NaN becomes 0, or 2^(bits - 1) if either side has 64 bits.
template <class To, class From>
To to_integer(From value) {
    constexpr int bits = 8 * static_cast<int>(sizeof(To));
    if (std::isnan(value))
        return sizeof(From) == 8 || sizeof(To) == 8 ? static_cast<To>(std::uint64_t{1} << (bits - 1)) : To{0};
    const From above = std::ldexp(From{1}, bits - (std::is_signed_v<To> ? 1 : 0));  // largest To + 1, a power of two
    if (value >= above) return std::numeric_limits<To>::max();
    if (value < static_cast<From>(std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
    return static_cast<To>(value);
}

}  // namespace lockstep::ptx
