// Special functions of one number. One kernel has all of them, because kernels for each would take long to compile.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "lockstep/ops/internal/angles.h"
#include "lockstep/runtime/host_device.h"

namespace lockstep {

namespace special {

/// log(|gamma(x)|). That of the host's C++ library writes a global variable.
LOCKSTEP_HD_INLINE float log_gamma(float x) {
#if defined(__CUDA_ARCH__)
    return ::lgammaf(x);
#else
    int sign;
    return ::lgammaf_r(x, &sign);
#endif
}
LOCKSTEP_HD_INLINE double log_gamma(double x) {
#if defined(__CUDA_ARCH__)
    return ::lgamma(x);
#else
    int sign;
    return ::lgamma_r(x, &sign);
#endif
}

/// The derivative of log_gamma: its asymptotic series from 10 on, the recurrence below, and the reflection formula for
/// negative numbers (Abramowitz and Stegun 6.3.5, 6.3.7, 6.3.18).
template <class T>
LOCKSTEP_HD_INLINE T digamma(T x) {
    if (x == T(0)) return std::copysign(std::numeric_limits<T>::infinity(), -x);
    T sum = 0;
    if (x < T(0)) {
        const T fraction = x - std::trunc(x);
        if (fraction == T(0)) return std::numeric_limits<T>::quiet_NaN();
        sum = T(-M_PI) / angles::tan(T(M_PI) * fraction);
        x = T(1) - x;
    }
    for (; x < T(10); x += T(1)) sum -= T(1) / x;
    const T z = T(1) / (x * x);
    const T series =
        z * (T(1.0 / 12) -
             z * (T(1.0 / 120) -
                  z * (T(1.0 / 252) - z * (T(1.0 / 240) - z * (T(1.0 / 132) - z * (T(691.0 / 32760) - z / T(12)))))));
    return sum + (std::log(x) - T(0.5) / x - series);
}

/// The sum of (x + k)^-s for k = 0, 1, ... of an integer s > 1 and x > 0: ten terms, and the Euler-Maclaurin formula
/// for the others.
template <class T>
LOCKSTEP_HD_INLINE T hurwitz_zeta(int s, T x) {
    if (x == std::numeric_limits<T>::infinity()) return T(0);
    const T power = T(-s);
    T sum = 0;
    for (int k = 0; k < 10; ++k, x += T(1)) sum += std::pow(x, power);
    T term = std::pow(x, power);  // the first one of the rest
    sum += x * term / T(s - 1) + term / T(2);
    // Bernoulli numbers B(2 n) / (2 n)!
    constexpr double coefficients[] = {
        1.0 / 12, -1.0 / 720, 1.0 / 30240, -1.0 / 1209600, 1.0 / 47900160, -691.0 / 1307674368e3, 1.0 / 74724249600.0};
    T factor = T(s);
    for (int n = 0; n < 7; ++n) {
        term /= x;
        sum += static_cast<T>(coefficients[n]) * factor * term;
        term /= x;
        factor *= T(s + 2 * n + 1) * T(s + 2 * n + 2);
    }
    return sum;
}

/// The highest derivative of digamma. Factorials up to here are numbers of f32.
constexpr int most_derivatives = 30;

/// The derivative of digamma of this order, 1 to most_derivatives. With s = order + 1, it is (-1)^s times the factorial
/// of the order times the sum of (x + k)^-s. A negative x adds the terms of negative numbers, whose magnitudes are
/// 1 - fraction, 2 - fraction, ..., -x. The cost does not depend on x.
template <class T>
LOCKSTEP_HD_INLINE T polygamma(int order, T x) {
    const int s = order + 1;
    const T sign = s % 2 == 0 ? T(1) : T(-1);
    if (x <= T(0) && x == std::floor(x)) return sign * std::numeric_limits<T>::infinity();
    const bool reflects = x < T(0);
    const T before = std::trunc(x) - x, fraction = T(1) - before;  // for negative x
    T sum = 0;
    for (int i = 0; i < (reflects ? 3 : 1); ++i) {  // a loop: one copy of the function in a kernel
        const T part = hurwitz_zeta(s, !reflects ? x : i == 0 ? fraction : i == 1 ? before : T(1) - x);
        sum += i == 0 ? part : i == 1 ? sign * part : -sign * part;
    }
    return sign * std::exp(log_gamma(static_cast<T>(s))) * sum;
}

/// The number whose error function is x: Giles, "Approximating the erfinv function" (2012), and two steps of Newton's
/// method.
template <class T>
LOCKSTEP_HD_INLINE T inverse_erf(T x) {
    if (!(std::abs(x) < T(1)))
        return std::abs(x) == T(1) ? std::copysign(std::numeric_limits<T>::infinity(), x)
                                   : std::numeric_limits<T>::quiet_NaN();
    T w = -std::log((T(1) - x) * (T(1) + x)), p;
    if (w < T(5)) {
        w -= T(2.5);
        p = T(2.81022636e-08);
        p = T(3.43273939e-07) + p * w;
        p = T(-3.5233877e-06) + p * w;
        p = T(-4.39150654e-06) + p * w;
        p = T(0.00021858087) + p * w;
        p = T(-0.00125372503) + p * w;
        p = T(-0.00417768164) + p * w;
        p = T(0.246640727) + p * w;
        p = T(1.50140941) + p * w;
    } else {
        w = std::sqrt(w) - T(3);
        p = T(-0.000200214257);
        p = T(0.000100950558) + p * w;
        p = T(0.00134934322) + p * w;
        p = T(-0.00367342844) + p * w;
        p = T(0.00573950773) + p * w;
        p = T(-0.0076224613) + p * w;
        p = T(0.00943887047) + p * w;
        p = T(1.00167406) + p * w;
        p = T(2.83297682) + p * w;
    }
    T y = p * x;
    for (int step = 0; step < 2; ++step) y -= (std::erf(y) - x) / (T(M_2_SQRTPI) * std::exp(-y * y));
    return y;
}

}  // namespace special

/// in: x (f32 or f64, any strides); out: y
struct SpecialFunction {
    static constexpr const char* name = "special_function";
    static constexpr bool is_elementwise = true;

    enum class Function : std::uint8_t { erfc, erfinv, lgamma, digamma, polygamma };
    Function function;
    int order = 0;  ///< polygamma only

    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        switch (function) {
            case Function::erfc: return std::erfc(x);
            case Function::erfinv: return special::inverse_erf(x);
            case Function::lgamma: return special::log_gamma(x);
            case Function::digamma: return special::digamma(x);
            case Function::polygamma: break;
        }
        return special::polygamma(order, x);
    }
};

}  // namespace lockstep
