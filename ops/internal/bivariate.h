// Functions of two numbers that networks rarely compute. One kernel has all of them, because kernels for each would
// take long to compile.
#pragma once

#include <cmath>
#include <cstdint>

#include "lockstep/runtime/host_device.h"

namespace lockstep {

/// in: a, b (f32 or f64, of one dtype, broadcast together, any strides); out: y
struct Bivariate {
    static constexpr const char* name = "bivariate";
    static constexpr bool is_elementwise = true;

    enum class Function : std::uint8_t { pow, atan2, hypot, fmod, remainder, copysign, fmax, fmin };
    Function function;

    template <class T>
    LOCKSTEP_HD_INLINE T value(T a, T b) const {
        switch (function) {
            case Function::pow: return std::pow(a, b);
            case Function::atan2: return std::atan2(a, b);
            case Function::hypot: return std::hypot(a, b);
            case Function::fmod: return std::fmod(a, b);
            case Function::copysign: return std::copysign(a, b);
            case Function::fmax: return std::fmax(a, b);
            case Function::fmin: return std::fmin(a, b);
            case Function::remainder: break;
        }
        const T rest = std::fmod(a, b);
        return rest != T(0) && (rest < T(0)) != (b < T(0)) ? rest + b : rest;
    }
};

/// in: a, b (as of Bivariate); out: the number at `weight` between a and b, from the nearer end: exact at both
struct Lerp {
    static constexpr const char* name = "lerp";
    static constexpr bool is_elementwise = true;
    double weight;

    template <class T>
    LOCKSTEP_HD_INLINE T value(T a, T b) const {
        const T between = (b - a) * static_cast<T>(weight < 0.5 ? weight : 1 - weight);
        return weight < 0.5 ? a + between : b - between;
    }
};

/// in: a, b (i64, broadcast together, any strides); out: y. Numbers wrap around. A divisor of 0 is reported in the
/// status word (StatusCode::division_by_zero, with its row).
struct IntegerBivariate {
    static constexpr const char* name = "integer_bivariate";
    static constexpr bool reports_status = true;

    enum class Function : std::uint8_t {
        trunc_quotient,
        floor_quotient,
        fmod,
        remainder,
        pow,
        bit_and,
        bit_or,
        bit_xor,
        left_shift,
        right_shift
    };
    Function function;

    bool divides() const { return function < Function::pow; }

    LOCKSTEP_HD_INLINE std::int64_t value(std::int64_t a, std::int64_t b) const {
        const bool in_range = b >= 0 && b < 64;  // for shifts
        switch (function) {
            case Function::pow: return power(a, b);
            case Function::bit_and: return a & b;
            case Function::bit_or: return a | b;
            case Function::bit_xor: return a ^ b;
            case Function::left_shift: return in_range ? wrap(bits(a) << b) : 0;
            case Function::right_shift: return a >> (in_range ? b : 63);
            default: break;
        }
        if (b == 0) return 0;
        const bool negates = b == -1;  // the quotient of the smallest number overflows
        const std::int64_t quotient = negates ? wrap(0 - bits(a)) : a / b, rest = negates ? 0 : a % b;
        const bool rounds_up = rest != 0 && (rest < 0) != (b < 0);
        switch (function) {
            case Function::trunc_quotient: return quotient;
            case Function::floor_quotient: return rounds_up ? quotient - 1 : quotient;
            case Function::fmod: return rest;
            default: return rounds_up ? rest + b : rest;
        }
    }

private:
    LOCKSTEP_HD_INLINE static std::uint64_t bits(std::int64_t x) { return static_cast<std::uint64_t>(x); }
    LOCKSTEP_HD_INLINE static std::int64_t wrap(std::uint64_t x) { return static_cast<std::int64_t>(x); }

    /// Negative powers are rounded towards 0.
    LOCKSTEP_HD_INLINE static std::int64_t power(std::int64_t base, std::int64_t exponent) {
        if (exponent < 0) return base == 1 ? 1 : base != -1 ? 0 : exponent % 2 == 0 ? 1 : -1;
        std::uint64_t result = 1, square = bits(base);
        for (; exponent > 0; exponent /= 2) {
            if (exponent % 2 == 1) result *= square;
            square *= square;
        }
        return wrap(result);
    }
};

}  // namespace lockstep
