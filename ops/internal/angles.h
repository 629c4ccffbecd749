// Sine, cosine and tangent. Those of CUDA reduce large angles in an array that each thread of a kernel has in local
// memory. On devices, these have no array.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "lockstep/runtime/host_device.h"

namespace lockstep::angles {

namespace detail {

/// An angle: a number of quarter turns, modulo 4, and the rest in radians, at most an eighth of a turn.
template <class T>
struct Reduced {
    T rest;
    unsigned quarters;
};

/// 32 binary digits of 2 / pi. Digit 96 is the first one after the point.
LOCKSTEP_HD_INLINE std::uint32_t digits(int first) {
    static constexpr std::uint32_t words[] = {
        0,          0,          0,          0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0, 0xdb629599, 0x3c439041,
        0xfe5163ab, 0xdebbc561, 0xb7246e3a, 0x424dd2e0, 0x06492eea, 0x09d1921c, 0xfe1deb1c, 0xb129a73e, 0xe88235f5,
        0x2ebb4484, 0xe99c7026, 0xb45f7e41, 0x3991d639, 0x835339f4, 0x9c845f8b, 0xbdf9283b, 0x1ff897ff, 0xde05980f,
        0xef2f118b, 0x5a0a6d1f, 0x6d367ecf, 0x27cb09b7, 0x4f463f66, 0x9e5fea2d, 0x7527bac7, 0xebe5f17b, 0x3d0739f7,
        0x8a5292ea, 0x6bfb5fb1, 0x1f8d5d08, 0x56033046, 0xfc7b6bab};
    const std::uint64_t both = std::uint64_t{words[first / 32]} << 32 | words[first / 32 + 1];
    return static_cast<std::uint32_t>(both << (first % 32) >> 32);
}

/// The upper half of a product.
LOCKSTEP_HD_INLINE std::uint64_t upper(std::uint64_t a, std::uint64_t b) {
#if defined(__CUDA_ARCH__)
    return __umul64hi(a, b);
#else
    const std::uint64_t a1 = a >> 32, a0 = a & 0xffffffffu, b1 = b >> 32, b0 = b & 0xffffffffu;
    const std::uint64_t middle = a1 * b0 + (a0 * b0 >> 32), other = a0 * b1 + (middle & 0xffffffffu);
    return a1 * b1 + (middle >> 32) + (other >> 32);
#endif
}

// Payne and Hanek 1983: the magnitude of x is a whole number times 2^e. Digits of 2 / pi whose products with it are
// multiples of 4 do not matter, those after the accuracy of the result neither.

/// |x| of 2 or more: 24 bits times 96 digits.
LOCKSTEP_HD_INLINE Reduced<float> reduce_large(float x) {
    std::uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const int first = static_cast<int>(bits >> 23 & 255) - 64;
    const std::uint32_t whole = bits << 8 | 0x80000000u;
    // Quarter turns modulo 4, with 62 digits after the point.
    const std::uint64_t turns = (std::uint64_t{whole * digits(first)} << 32) +
                                std::uint64_t{whole} * digits(first + 32) +
                                (std::uint64_t{whole} * digits(first + 64) >> 32);
    const auto quarters = static_cast<unsigned>((turns + (std::uint64_t{1} << 61)) >> 62);
    const auto rest =
        static_cast<float>(static_cast<double>(static_cast<std::int64_t>(turns << 2)) * (M_PI_2 * 0x1p-64));
    return x < 0 ? Reduced<float>{-rest, 0u - quarters} : Reduced<float>{rest, quarters};
}

/// |x| of 1 / 2 or more: 53 bits times 192 digits.
LOCKSTEP_HD_INLINE Reduced<double> reduce_large(double x) {
    std::uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    const int first = static_cast<int>(bits >> 52 & 2047) - 992;
    const std::uint64_t whole = bits << 11 | std::uint64_t{1} << 63;
    const auto long_digits = [first](int more) {
        return std::uint64_t{digits(first + more)} << 32 | digits(first + more + 32);
    };
    const std::uint64_t middle = long_digits(64), below = upper(whole, long_digits(128));
    std::uint64_t low = whole * middle + below;
    std::uint64_t high = whole * long_digits(0) + upper(whole, middle) + (low < below ? 1u : 0u);
    const auto quarters = static_cast<unsigned>((high + (std::uint64_t{1} << 61)) >> 62);
    high = high << 2 | low >> 62;
    low <<= 2;
    const bool down = high >> 63 != 0;  // the rest is negative
    if (down) {
        high = ~high;
        low = ~low;
    }
    double rest = static_cast<double>(high) + static_cast<double>(low) * 0x1p-64;
    rest = std::fma(rest, M_PI_2 * 0x1p-64, rest * (6.1232339957367574e-17 * 0x1p-64));
    if (down) rest = -rest;
    return x < 0 ? Reduced<double>{-rest, 0u - quarters} : Reduced<double>{rest, quarters};
}

/// pi / 2 as the sum of three numbers, with the sign of the terms that reduce an angle (Cody and Waite 1980).
template <class T>
inline constexpr T minus_quarter[3] = {T(-1.5707963267948966e+00), T(-6.1232339957367574e-17),
                                       T(-8.4784276603688985e-32)};
template <>
inline constexpr float minus_quarter<float>[3] = {-1.57079625f, -7.54978942e-08f, -5.39030253e-15f};

template <class T>
LOCKSTEP_HD_INLINE Reduced<T> reduce(T x) {
    if (!(std::fabs(x) <= T(1e5)))  // also for NaN, which has no quarters
        return std::fabs(x) < T(INFINITY) ? reduce_large(x) : Reduced<T>{x - x, 0};
    const int quarters = static_cast<int>(std::rint(x * T(M_2_PI)));
    const auto number = static_cast<T>(quarters);  // 0 rather than -0
    constexpr T first = minus_quarter<T>[0], second = minus_quarter<T>[1], third = minus_quarter<T>[2];
    const T rest = std::fma(number, third, std::fma(number, second, std::fma(number, first, x)));
    return {rest, static_cast<unsigned>(quarters)};
}

/// A polynomial, whose first coefficient is that of the highest power.
template <class T, int n>
LOCKSTEP_HD_INLINE T polynomial(T z, const T (&coefficients)[n]) {
    T sum = coefficients[0];
    for (int i = 1; i < n; ++i) sum = std::fma(sum, z, coefficients[i]);
    return sum;
}

// Polynomials of the Cephes library (f32) and of fdlibm (f64).
LOCKSTEP_HD_INLINE float sine_of_rest(float x) {
    const float z = x * x, cubic = std::fma(z, x, 0.0f);  // not -0 for -0
    return std::fma(polynomial(z, {-1.9515295891e-4f, 8.3321608736e-3f, -1.6666654611e-1f}), cubic, x);
}
LOCKSTEP_HD_INLINE float cosine_of_rest(float x) {
    return polynomial(x * x, {2.443315711809948e-5f, -1.388731625493765e-3f, 4.166664568298827e-2f, -0.5f, 1.0f});
}
LOCKSTEP_HD_INLINE double sine_of_rest(double x) {
    const double z = x * x, cubic = std::fma(z, x, 0.0);
    return std::fma(
        polynomial(z, {1.58969099521155010221e-10, -2.50507602534068634195e-08, 2.75573137070700676789e-06,
                       -1.98412698298579493134e-04, 8.33333333332248946124e-03, -1.66666666666666324348e-01}),
        cubic, x);
}
LOCKSTEP_HD_INLINE double cosine_of_rest(double x) {
    return polynomial(x * x,
                      {-1.13596475577881948265e-11, 2.08757232129817482790e-09, -2.75573143513906633035e-07,
                       2.48015872894767294178e-05, -1.38888888888741095749e-03, 4.16666666666666019037e-02, -0.5, 1.0});
}

template <class T>
LOCKSTEP_HD_INLINE T sine(const Reduced<T>& angle) {
    const T size = (angle.quarters & 1) != 0 ? cosine_of_rest(angle.rest) : sine_of_rest(angle.rest);
    return (angle.quarters & 2) != 0 ? -size : size;
}

template <class T>
LOCKSTEP_HD_INLINE T sin(T x) {
    return sine(reduce(x));
}
template <class T>
LOCKSTEP_HD_INLINE T cos(T x) {
    Reduced<T> angle = reduce(x);
    ++angle.quarters;
    return sine(angle);
}
template <class T>
LOCKSTEP_HD_INLINE T tan(T x) {
    const Reduced<T> angle = reduce(x);
    const T sine = sine_of_rest(angle.rest), cosine = cosine_of_rest(angle.rest);
    return (angle.quarters & 1) != 0 ? -cosine / sine : sine / cosine;
}

}  // namespace detail

#if defined(__CUDACC__)
using detail::cos;
using detail::sin;
using detail::tan;
#else
using std::cos;
using std::sin;
using std::tan;
#endif

}  // namespace lockstep::angles
