// Random numbers of a distribution from random bits, with equal bits on all processors and devices: only operations
// that IEEE 754 rounds correctly, and sums of products that are rounded once (fma), so that no compiler can contract
// them differently.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "lockstep/runtime/host_device.h"
#include "lockstep/runtime/random.h"

namespace lockstep::element {

/// a * b + c, rounded once.
LOCKSTEP_HD_INLINE float fused(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
    return ::fmaf(a, b, c);
#else
    return __builtin_fmaf(a, b, c);
#endif
}
LOCKSTEP_HD_INLINE double fused(double a, double b, double c) {
#if defined(__CUDA_ARCH__)
    return ::fma(a, b, c);
#else
    return __builtin_fma(a, b, c);
#endif
}
LOCKSTEP_HD_INLINE float square_root(float x) {
#if defined(__CUDA_ARCH__)
    return ::sqrtf(x);
#else
    return __builtin_sqrtf(x);
#endif
}
LOCKSTEP_HD_INLINE double square_root(double x) {
#if defined(__CUDA_ARCH__)
    return ::sqrt(x);
#else
    return __builtin_sqrt(x);
#endif
}

/// Value at x of the polynomial with these coefficients, highest power first.
template <class T, class... Rest>
LOCKSTEP_HD_INLINE T polynomial(T x, T value, Rest... rest) {
    ((value = fused(value, x, rest)), ...);
    return value;
}

/// Uniform in [0, 1) with `digits` bits, at most 24.
LOCKSTEP_HD_INLINE float uniform(std::uint32_t word, int digits) {
    return static_cast<float>(static_cast<std::int32_t>(word >> (32 - digits))) *
           (1.0f / static_cast<float>(std::int32_t{1} << digits));
}
/// Uniform in [0, 1) with 53 bits.
LOCKSTEP_HD_INLINE double uniform(std::uint32_t high, std::uint32_t low) {
    const double upper = static_cast<std::int32_t>(high >> 5), lower = static_cast<std::int32_t>(low >> 6);
    return fused(upper, 0x1p26, lower) * 0x1p-53;
}

/// -log(v / 2^bits) for 0.5 <= v < 2^31; relative error below 2e-7 if v / 2^bits is at most 0.1. The exponent, and
/// log(m) = 2 atanh((m - 1) / (m + 1)) of a mantissa in [sqrt(0.5), sqrt(2)).
LOCKSTEP_HD_INLINE float minus_log(float v, int bits) {
    constexpr std::int32_t root_of_half = 0x3f3504f3;
    std::int32_t word;
    memcpy(&word, &v, sizeof word);
    const std::int32_t exponent = (word - root_of_half) >> 23;
    word -= exponent * (1 << 23);
    float m;
    memcpy(&m, &word, sizeof m);
    const float s = (m - 1.0f) / (m + 1.0f), z = s * s;
    const float series = polynomial(z, 2.0f / 9, 2.0f / 7, 2.0f / 5, 2.0f / 3);
    return fused(static_cast<float>(bits - exponent), 0x1.62e43p-1f, -fused(s * z, series, 2 * s));
}
/// For 0.5 <= v <= 2^62; relative error below 1e-15.
LOCKSTEP_HD_INLINE double minus_log(double v, int bits) {
    constexpr std::int64_t root_of_half = 0x3fe6a09e667f3bcd;
    std::int64_t word;
    memcpy(&word, &v, sizeof word);
    const auto exponent = static_cast<std::int32_t>((word - root_of_half) >> 52);
    word -= exponent * (std::int64_t{1} << 52);
    double m;
    memcpy(&m, &word, sizeof m);
    const double s = (m - 1.0) / (m + 1.0), z = s * s;
    const double series =
        polynomial(z, 2.0 / 21, 2.0 / 19, 2.0 / 17, 2.0 / 15, 2.0 / 13, 2.0 / 11, 2.0 / 9, 2.0 / 7, 2.0 / 5, 2.0 / 3);
    return fused(static_cast<double>(bits - exponent), 0x1.62e42fefa39efp-1, -fused(s * z, series, 2 * s));
}

// Standard normal numbers by inversion: a bit is the sign, and the others are u in (0, 0.5), the probability of a
// larger number. Wichura (1988), "Algorithm AS 241: The Percentage Points of the Normal Distribution", PPND7 and
// PPND16.

/// One of 2^32 numbers up to 6.3.
LOCKSTEP_HD_INLINE float normal(std::uint32_t word) {
    const auto n = static_cast<std::int32_t>(word >> 1);                     // u = (n + 0.5) / 2^32
    const float q = (static_cast<float>(0x7fffffff - n) + 0.5f) * 0x1p-32f;  // 0.5 - u
    const float r = fused(-q, q, 0.180625f);
    const float middle = q * polynomial(r, 5.9109374720e+1f, 1.5929113202e+2f, 5.0434271938e+1f, 3.3871327179e+0f) /
                         polynomial(r, 6.7187563600e+1f, 7.8757757664e+1f, 1.7895169469e+1f, 1.0f);
    const float t = square_root(minus_log(static_cast<float>(n) + 0.5f, 32)) - 1.6f;  // at most 3.2
    const float tail = polynomial(t, 1.7023821103e-1f, 1.3067284816e+0f, 2.7568153900e+0f, 1.4234372777e+0f) /
                       polynomial(t, 1.2021132975e-1f, 7.3700164250e-1f, 1.0f);
    const float magnitude = q <= 0.425f ? middle : tail;
    return (word & 1) != 0 ? -magnitude : magnitude;
}

/// One of 2^63 numbers up to 9.1.
LOCKSTEP_HD_INLINE double normal(std::uint32_t first, std::uint32_t second) {
    const auto high = static_cast<std::int32_t>(first >> 1), low = static_cast<std::int32_t>(second >> 1);
    const double v = fused(static_cast<double>(high), 0x1p31, static_cast<double>(low) + 0.5);  // u = v / 2^63
    const double q =
        fused(static_cast<double>(0x7fffffff - high), 0x1p31, static_cast<double>(0x7fffffff - low) + 0.5) *
        0x1p-63;  // 0.5 - u
    const double r = fused(-q, q, 0.180625);
    const double middle = q *
                          polynomial(r, 2.50908092873012267270e+3, 3.34305755835881281050e+4, 6.72657709270087008530e+4,
                                     4.59219539315498714570e+4, 1.37316937655094611250e+4, 1.97159095030655144270e+3,
                                     1.33141667891784377450e+2, 3.38713287279636660800e+0) /
                          polynomial(r, 5.22649527885285456100e+3, 2.87290857357219426740e+4, 3.93078958000927106100e+4,
                                     2.12137943015865958670e+4, 5.39419602142475110770e+3, 6.87187007492057908300e+2,
                                     4.23133307016009112520e+1, 1.0);
    const double root = square_root(minus_log(v, 63)), near = root - 1.6, far = root - 5.0;
    const double tail = polynomial(near, 7.74545014278341407640e-4, 2.27238449892691845833e-2,
                                   2.41780725177450611770e-1, 1.27045825245236838258e+0, 3.64784832476320460504e+0,
                                   5.76949722146069140550e+0, 4.63033784615654529590e+0, 1.42343711074968357734e+0) /
                        polynomial(near, 1.05075007164441684324e-9, 5.47593808499534494600e-4,
                                   1.51986665636164571966e-2, 1.48103976427480074590e-1, 6.89767334985100004550e-1,
                                   1.67638483018380384940e+0, 2.05319162663775882187e+0, 1.0);
    const double end = polynomial(far, 2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3,
                                  2.65321895265761230930e-2, 2.96560571828504891230e-1, 1.78482653991729133580e+0,
                                  5.46378491116411436990e+0, 6.65790464350110377720e+0) /
                       polynomial(far, 2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5,
                                  7.86869131145613259100e-4, 1.48753612908506148525e-2, 1.36929880922735805310e-1,
                                  5.99832206555887937690e-1, 1.0);
    const double magnitude = q <= 0.425 ? middle : root <= 5.0 ? tail : end;
    return (first & 1) != 0 ? -magnitude : magnitude;
}

// Numbers that are drawn.

/// `below` with probability p, which is resolved to 24 bits, else `above`.
template <class T>
LOCKSTEP_HD_INLINE T one_of_two(std::uint32_t word, float p, T below, T above) {
    return to_uniform(word) < p ? below : above;
}
/// Factor of elements that dropout keeps.
template <class T>
LOCKSTEP_HD_INLINE T dropout_factor(double p) {
    return p < 1 ? static_cast<T>(1 / (1 - p)) : T(0);
}

/// Numbers of type T with `words` words of random bits each.
template <class T>
constexpr int words_of_number = sizeof(T) == 8 ? 2 : 1;

/// A number from the words at `word`.
template <class T>
LOCKSTEP_HD_INLINE T uniform_from(const std::uint32_t* word, int digits) {
    if constexpr (words_of_number<T> == 2)
        return uniform(word[0], word[1]);
    else
        return uniform(word[0], digits);
}
template <class T>
LOCKSTEP_HD_INLINE T normal_from(const std::uint32_t* word) {
    if constexpr (words_of_number<T> == 2)
        return normal(word[0], word[1]);
    else
        return normal(word[0]);
}

}  // namespace lockstep::element
