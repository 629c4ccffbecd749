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

    enum class Function : std::uint8_t { pow, atan2, hypot, fmod, remainder };
    Function function;

    template <class T>
    LOCKSTEP_HD_INLINE T value(T a, T b) const {
        switch (function) {
            case Function::pow: return std::pow(a, b);
            case Function::atan2: return std::atan2(a, b);
            case Function::hypot: return std::hypot(a, b);
            case Function::fmod: return std::fmod(a, b);
            case Function::remainder: break;
        }
        const T rest = std::fmod(a, b);
        return rest != T(0) && (rest < T(0)) != (b < T(0)) ? rest + b : rest;
    }
};

}  // namespace lockstep
