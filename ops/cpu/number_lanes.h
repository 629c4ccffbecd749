// Numbers of one vector register, on which the functions of unary_functions.h compute as on a single number. The
// elementary functions are SLEEF's for the instruction set of the source that includes this: within 1 ulp, and with the
// same bits for AVX2 and AVX-512. Included only by the sources of the loops; as there, all functions are always
// inlined.
#pragma once

#include <sleef.h>

#include <cstddef>

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
    template <class Mask>
    friend LOCKSTEP_LANES_INLINE NumberLanes choose(Mask mask, NumberLanes a, NumberLanes b) {
        return mask ? a.v : b.v;
    }
};

#if defined(__AVX512F__)
#define LOCKSTEP_SLEEF_F32(name) Sleef_finz_##name##f16_u10avx512f
#define LOCKSTEP_SLEEF_F64(name) Sleef_finz_##name##d8_u10avx512f
#else
#define LOCKSTEP_SLEEF_F32(name) Sleef_finz_##name##f8_u10avx2
#define LOCKSTEP_SLEEF_F64(name) Sleef_finz_##name##d4_u10avx2
#endif
/// A function of one number; found by the types of its arguments.
#define LOCKSTEP_LANES_FUNCTION(name)                                                                             \
    LOCKSTEP_LANES_INLINE NumberLanes<float> name(NumberLanes<float> x) { return LOCKSTEP_SLEEF_F32(name)(x.v); } \
    LOCKSTEP_LANES_INLINE NumberLanes<double> name(NumberLanes<double> x) { return LOCKSTEP_SLEEF_F64(name)(x.v); }
LOCKSTEP_LANES_FUNCTION(cos)
LOCKSTEP_LANES_FUNCTION(erf)
LOCKSTEP_LANES_FUNCTION(exp)
LOCKSTEP_LANES_FUNCTION(expm1)
LOCKSTEP_LANES_FUNCTION(log)
LOCKSTEP_LANES_FUNCTION(log1p)
LOCKSTEP_LANES_FUNCTION(sin)
LOCKSTEP_LANES_FUNCTION(tanh)
LOCKSTEP_LANES_INLINE NumberLanes<float> pow(NumberLanes<float> x, NumberLanes<float> y) {
    return LOCKSTEP_SLEEF_F32(pow)(x.v, y.v);
}
LOCKSTEP_LANES_INLINE NumberLanes<double> pow(NumberLanes<double> x, NumberLanes<double> y) {
    return LOCKSTEP_SLEEF_F64(pow)(x.v, y.v);
}
#undef LOCKSTEP_LANES_FUNCTION
#undef LOCKSTEP_SLEEF_F32
#undef LOCKSTEP_SLEEF_F64

}  // namespace lockstep::cpu
