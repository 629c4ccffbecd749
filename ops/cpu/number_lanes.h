// Numbers of one vector register, on which the functions of unary_functions.h compute as on a single number, with the
// same bits for AVX2 and AVX-512. exp, expm1, log, tanh and erf of f32 are polynomials, within 1.4 units in the last
// place; the other elementary functions are SLEEF's for the instruction set of the source that includes this, within 1
// unit (erfc: 1.5). Included only by the sources of the loops; as there, all functions are always inlined.
#pragma once

#include <immintrin.h>
#include <sleef.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#define LOCKSTEP_LANES_INLINE inline __attribute__((always_inline))

namespace lockstep::cpu {

#if defined(__AVX512F__)
constexpr std::size_t lane_bytes = 64;
#else
constexpr std::size_t lane_bytes = 32;
#endif

/// `bytes` makes the types of the instruction sets different ones.
template <class T, std::size_t bytes = lane_bytes>
struct NumberLanes {
    typedef T Vector __attribute__((vector_size(bytes)));
    typedef T Unaligned __attribute__((vector_size(bytes), aligned(alignof(T)), may_alias));
    static constexpr std::ptrdiff_t count = bytes / sizeof(T);

    Vector v;

    LOCKSTEP_LANES_INLINE NumberLanes() = default;
    LOCKSTEP_LANES_INLINE NumberLanes(Vector of)
        : v(of) {}  // NOLINT(google-explicit-constructor): results of operators
    /// The same number in all lanes.
    LOCKSTEP_LANES_INLINE explicit NumberLanes(double x) : v(static_cast<T>(x) - Vector{}) {}
    LOCKSTEP_LANES_INLINE static NumberLanes load(const T* from) { return *reinterpret_cast<const Unaligned*>(from); }
    LOCKSTEP_LANES_INLINE void store(T* to) const { *reinterpret_cast<Unaligned*>(to) = v; }

    friend LOCKSTEP_LANES_INLINE NumberLanes operator-(NumberLanes a) { return -a.v; }
    friend LOCKSTEP_LANES_INLINE NumberLanes operator+(NumberLanes a, NumberLanes b) { return a.v + b.v; }
    friend LOCKSTEP_LANES_INLINE NumberLanes operator-(NumberLanes a, NumberLanes b) { return a.v - b.v; }
    friend LOCKSTEP_LANES_INLINE NumberLanes operator*(NumberLanes a, NumberLanes b) { return a.v * b.v; }
    friend LOCKSTEP_LANES_INLINE NumberLanes operator/(NumberLanes a, NumberLanes b) { return a.v / b.v; }
    friend LOCKSTEP_LANES_INLINE auto operator<(NumberLanes a, NumberLanes b) { return a.v < b.v; }
    friend LOCKSTEP_LANES_INLINE auto operator>(NumberLanes a, NumberLanes b) { return a.v > b.v; }
    friend LOCKSTEP_LANES_INLINE auto operator<=(NumberLanes a, NumberLanes b) { return a.v <= b.v; }
    template <class Mask>
    friend LOCKSTEP_LANES_INLINE NumberLanes choose(Mask mask, NumberLanes a, NumberLanes b) {
        return mask ? a.v : b.v;
    }
};

#if defined(__AVX512F__)
#define LOCKSTEP_SLEEF_F32(name) Sleef_finz_##name##f16_u10avx512f
#define LOCKSTEP_SLEEF_F64(name) Sleef_finz_##name##d8_u10avx512f
#define LOCKSTEP_SLEEF_ERFC Sleef_finz_erfcd8_u15avx512f
#else
#define LOCKSTEP_SLEEF_F32(name) Sleef_finz_##name##f8_u10avx2
#define LOCKSTEP_SLEEF_F64(name) Sleef_finz_##name##d4_u10avx2
#define LOCKSTEP_SLEEF_ERFC Sleef_finz_erfcd4_u15avx2
#endif
/// A function of one number; found by the types of its arguments.
#define LOCKSTEP_LANES_FUNCTION(name)                                                                             \
    LOCKSTEP_LANES_INLINE NumberLanes<float> name(NumberLanes<float> x) { return LOCKSTEP_SLEEF_F32(name)(x.v); } \
    LOCKSTEP_LANES_INLINE NumberLanes<double> name(NumberLanes<double> x) { return LOCKSTEP_SLEEF_F64(name)(x.v); }
LOCKSTEP_LANES_FUNCTION(acos)
LOCKSTEP_LANES_FUNCTION(acosh)
LOCKSTEP_LANES_FUNCTION(asin)
LOCKSTEP_LANES_FUNCTION(asinh)
LOCKSTEP_LANES_FUNCTION(atan)
LOCKSTEP_LANES_FUNCTION(atanh)
LOCKSTEP_LANES_FUNCTION(cos)
LOCKSTEP_LANES_FUNCTION(cosh)
LOCKSTEP_LANES_FUNCTION(exp2)
LOCKSTEP_LANES_FUNCTION(log10)
LOCKSTEP_LANES_FUNCTION(log1p)
LOCKSTEP_LANES_FUNCTION(log2)
LOCKSTEP_LANES_FUNCTION(sin)
LOCKSTEP_LANES_FUNCTION(sinh)
LOCKSTEP_LANES_FUNCTION(tan)
template <class T>
LOCKSTEP_LANES_INLINE NumberLanes<T> sqrt(NumberLanes<T> x) {
    NumberLanes<T> y;
    for (std::ptrdiff_t i = 0; i < NumberLanes<T>::count; ++i) y.v[i] = std::sqrt(x.v[i]);
    return y;
}
LOCKSTEP_LANES_INLINE NumberLanes<float> pow(NumberLanes<float> x, NumberLanes<float> y) {
    return LOCKSTEP_SLEEF_F32(pow)(x.v, y.v);
}
LOCKSTEP_LANES_INLINE NumberLanes<double> pow(NumberLanes<double> x, NumberLanes<double> y) {
    return LOCKSTEP_SLEEF_F64(pow)(x.v, y.v);
}
LOCKSTEP_LANES_INLINE NumberLanes<double> erf(NumberLanes<double> x) { return LOCKSTEP_SLEEF_F64(erf)(x.v); }
LOCKSTEP_LANES_INLINE NumberLanes<double> erfc(NumberLanes<double> x) { return LOCKSTEP_SLEEF_ERFC(x.v); }
LOCKSTEP_LANES_INLINE NumberLanes<double> exp(NumberLanes<double> x) { return LOCKSTEP_SLEEF_F64(exp)(x.v); }
LOCKSTEP_LANES_INLINE NumberLanes<double> expm1(NumberLanes<double> x) { return LOCKSTEP_SLEEF_F64(expm1)(x.v); }
LOCKSTEP_LANES_INLINE NumberLanes<double> log(NumberLanes<double> x) { return LOCKSTEP_SLEEF_F64(log)(x.v); }
LOCKSTEP_LANES_INLINE NumberLanes<double> tanh(NumberLanes<double> x) { return LOCKSTEP_SLEEF_F64(tanh)(x.v); }
#undef LOCKSTEP_LANES_FUNCTION
#undef LOCKSTEP_SLEEF_F32
#undef LOCKSTEP_SLEEF_F64
#undef LOCKSTEP_SLEEF_ERFC

// Polynomials in f32. Their coefficients minimise the largest relative error of the function (weighted least squares,
// repeated with weights that grow where the error is large); each was rounded to f32 before the next was determined.

/// a * b + c, rounded once.
LOCKSTEP_LANES_INLINE NumberLanes<float> fused(NumberLanes<float> a, NumberLanes<float> b, NumberLanes<float> c) {
    using Vector = NumberLanes<float>::Vector;
#if defined(__AVX512F__)
    return (Vector)_mm512_fmadd_ps((__m512)a.v, (__m512)b.v, (__m512)c.v);
#else
    return (Vector)_mm256_fmadd_ps((__m256)a.v, (__m256)b.v, (__m256)c.v);
#endif
}
/// The polynomial with these coefficients, that of the highest power first.
template <class... Coefficients>
LOCKSTEP_LANES_INLINE NumberLanes<float> polynomial(NumberLanes<float> x, double highest, Coefficients... others) {
    NumberLanes<float> y(highest);
    ((y = fused(y, x, NumberLanes<float>(others))), ...);
    return y;
}

typedef std::int32_t LaneBits __attribute__((vector_size(lane_bytes)));
LOCKSTEP_LANES_INLINE LaneBits bits_of(NumberLanes<float> x) { return (LaneBits)x.v; }
LOCKSTEP_LANES_INLINE NumberLanes<float> from_bits(LaneBits bits) { return (NumberLanes<float>::Vector)bits; }
constexpr std::int32_t magnitude_bits = 0x7fffffff, exponent_bits = 0x7f800000;
LOCKSTEP_LANES_INLINE NumberLanes<float> magnitude(NumberLanes<float> x) {
    return from_bits(bits_of(x) & magnitude_bits);
}
/// `x`, which is not negative, with the sign of `sign`.
LOCKSTEP_LANES_INLINE NumberLanes<float> with_sign(NumberLanes<float> x, NumberLanes<float> sign) {
    return from_bits(bits_of(x) | (bits_of(sign) & ~magnitude_bits));
}

/// x = n log(2) + f.
struct SplitNumber {
    NumberLanes<float> f;
    LaneBits n;
};
LOCKSTEP_LANES_INLINE SplitNumber split_number(NumberLanes<float> x) {
    using Lanes = NumberLanes<float>;
    // The sum with 1.5 * 2^23 rounds to an integer, which is in its last bits.
    const Lanes shift(12582912), shifted = fused(x, Lanes(1.44269504), shift), n = shifted - shift;
    return {fused(n, Lanes(-1.42860677e-6), fused(n, Lanes(-0.693145752), x)), bits_of(shifted) - bits_of(shift)};
}
/// exp(x) = 2^n * power.
struct SplitExponential {
    NumberLanes<float> power;
    LaneBits n;
};
LOCKSTEP_LANES_INLINE SplitExponential split_exponential(NumberLanes<float> x) {
    const SplitNumber split = split_number(x);
    return {polynomial(split.f, 0.00138213614, 0.00836867001, 0.0416682586, 0.166665211, 0.49999994, 1, 1), split.n};
}
LOCKSTEP_LANES_INLINE NumberLanes<float> exp(NumberLanes<float> given) {
    using Lanes = NumberLanes<float>;
    // Beyond these limits the result is infinite or 0; NaN passes.
    const Lanes below = choose(given > Lanes(89), Lanes(89), given),
                x = choose(below < Lanes(-104), Lanes(-104), below);
    // 2^n as a product of two powers: n may be beyond the exponents of normal numbers.
    const SplitExponential split = split_exponential(x);
    const LaneBits half = split.n >> 1;
    return split.power * from_bits((half + 127) << 23) * from_bits((split.n - half + 127) << 23);
}
/// exp(x) for x in [-87, 88] and NaN.
LOCKSTEP_LANES_INLINE NumberLanes<float> normal_exp(NumberLanes<float> x) {
    const SplitExponential split = split_exponential(x);
    return split.power * from_bits((split.n + 127) << 23);
}

LOCKSTEP_LANES_INLINE NumberLanes<float> expm1(NumberLanes<float> given) {
    using Lanes = NumberLanes<float>;
    // Beyond these limits the result is infinite or -1; NaN passes.
    const Lanes below = choose(given > Lanes(89), Lanes(89), given), x = choose(below < Lanes(-30), Lanes(-30), below);
    const SplitNumber split = split_number(x);
    // exp(f) - 1, without cancellation, and half of 2^n, which may be beyond the exponents of normal numbers.
    const Lanes square = split.f * split.f;
    const Lanes power = fused(polynomial(split.f, 0.00138213614, 0.00836867001, 0.0416682586, 0.166665211, 0.49999994),
                              square, split.f);
    const Lanes half = from_bits((split.n + 126) << 23), half_result = fused(half, power, half - Lanes(0.5));
    return with_sign(magnitude(half_result + half_result), given);
}

LOCKSTEP_LANES_INLINE NumberLanes<float> log(NumberLanes<float> given) {
    using Lanes = NumberLanes<float>;
    const Lanes zero(0), smallest_normal(0x1p-126), infinity(__builtin_inf());
    const auto subnormal = given < smallest_normal;
    const Lanes x = choose(subnormal, given * Lanes(0x1p23), given);
    // x = 2^n (1 + f) with 1 + f in [2/3, 4/3).
    const LaneBits exponent = (bits_of(x) - bits_of(Lanes(0.666666667))) & ~(magnitude_bits ^ exponent_bits);
    const Lanes f = from_bits(bits_of(x) - exponent) - Lanes(1);
    const Lanes n = fused(Lanes(__builtin_convertvector(exponent, Lanes::Vector)), Lanes(0x1p-23),
                          choose(subnormal, Lanes(-23), zero));
    const Lanes cubic = polynomial(f, -0.12885657, 0.139868975, -0.121857136, 0.140053064, -0.166803762, 0.20010446,
                                   -0.249998003, 0.333332151);
    const Lanes fraction = fused(fused(cubic, f, Lanes(-0.5)), f * f, f);
    const Lanes normal = fused(n, Lanes(0.693147182), fraction);
    const Lanes of_others = choose(given < zero, Lanes(__builtin_nan("")), choose(given > zero, infinity, -infinity));
    const Lanes finite = choose(given > zero, choose(given < infinity, normal, of_others), of_others);
    return given.v == given.v ? finite.v : given.v;
}

LOCKSTEP_LANES_INLINE NumberLanes<float> tanh(NumberLanes<float> x) {
    using Lanes = NumberLanes<float>;
    const Lanes size = magnitude(x), square = x * x;
    const Lanes odd =
        polynomial(square, -0.00566571904, 0.0206048731, -0.0537295304, 0.133313239, -0.333332777) * square;
    const Lanes bounded = choose(size > Lanes(10), Lanes(10), size);  // from 10 on, the result is 1
    const Lanes large = Lanes(1) - Lanes(2) / (normal_exp(bounded + bounded) + Lanes(1));
    return with_sign(choose(size < Lanes(0.625), fused(odd, size, size), large), x);
}

LOCKSTEP_LANES_INLINE NumberLanes<float> erf(NumberLanes<float> x) {
    using Lanes = NumberLanes<float>;
    const Lanes size = magnitude(x), square = x * x;
    const Lanes odd =
        polynomial(square, -0.000595955527, 0.00498734787, -0.0267629642, 0.11281731, -0.376124889, 0.128379151);
    // erf(x) = 1 - exp(-x - x r(x)); from 4 on, the result is 1.
    const Lanes bounded = choose(size > Lanes(4), Lanes(4), size);
    const Lanes r = polynomial(bounded, 1.1230014e-05, -0.000322794018, 0.0036424296, -0.0237620194, 0.106236845,
                               0.635151327, 0.12864849);
    const Lanes large = Lanes(1) - normal_exp(-fused(r, bounded, bounded));
    return with_sign(choose(size < Lanes(0.925), fused(odd, size, size), large), x);
}

/// Probability that a normally distributed number is below x.
LOCKSTEP_LANES_INLINE NumberLanes<float> normal_cdf(NumberLanes<float> x) {
    using Lanes = NumberLanes<float>;
    // The probability for -t sqrt(2) is erfc(t) / 2, with erfc(t) = exp(-t - t r(t)). Beyond 4, where erfc(t) is below
    // 2e-8, r is a straight line; beyond 9.2, erfc(t) is 0.
    const Lanes t = magnitude(x * Lanes(M_SQRT1_2)), bounded = choose(t > Lanes(4), Lanes(4), t);
    const Lanes curve = polynomial(bounded, 4.76139206e-07, -1.03981984e-05, 9.74803042e-05, -0.000496455992,
                                   0.00129080843, 0.000394171191, -0.0196120087, 0.102983758, 0.636575222, 0.128382385);
    const Lanes r = fused(t - bounded, Lanes(0.934858079), curve);
    const Lanes half = normal_exp(-fused(r, t, t)) * Lanes(0.5), below = choose(t > Lanes(9.2), Lanes(0), half);
    return choose(x < Lanes(0), below, Lanes(1) - below);
}

}  // namespace lockstep::cpu
