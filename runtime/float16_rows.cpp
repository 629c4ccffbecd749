#include "lockstep/runtime/internal/float16_rows.h"

#include <cstdint>

namespace lockstep::float16 {

namespace {

// Processors with AVX2 have F16C as well.
#define LOCKSTEP_AVX2 __attribute__((target("avx2,f16c")))
#define LOCKSTEP_INLINE inline __attribute__((always_inline))

bool has_avx2() {
    static const bool has = __builtin_cpu_supports("avx2") != 0;
    return has;
}

LOCKSTEP_INLINE void upcast_bits(const BFloat16* x, float* y, std::ptrdiff_t n) {
    for (std::ptrdiff_t i = 0; i < n; ++i)
        y[i] = __builtin_bit_cast(float, static_cast<std::uint32_t>(x[i].bits) << 16);
}

LOCKSTEP_INLINE void downcast_bits(const float* x, BFloat16* y, std::ptrdiff_t n) {
    for (std::ptrdiff_t i = 0; i < n; ++i) {
        const auto word = __builtin_bit_cast(std::uint32_t, x[i]);
        const bool nan = (word & 0x7fffffffu) > 0x7f800000u;
        const std::uint32_t rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
        y[i].bits = static_cast<std::uint16_t>(nan ? (word >> 16) | 0x40u : rounded);
    }
}

LOCKSTEP_AVX2 void upcast_avx2(const BFloat16* x, float* y, std::ptrdiff_t n) { upcast_bits(x, y, n); }
LOCKSTEP_AVX2 void downcast_avx2(const float* x, BFloat16* y, std::ptrdiff_t n) { downcast_bits(x, y, n); }

typedef float Floats8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef short Halves8 __attribute__((vector_size(16), aligned(2), may_alias));

/// Converts the largest multiple of eight elements; returns their number.
LOCKSTEP_AVX2 std::ptrdiff_t upcast_avx2(const Half* x, float* y, std::ptrdiff_t n) {
    std::ptrdiff_t i = 0;
    for (; i + 8 <= n; i += 8)
        *reinterpret_cast<Floats8*>(y + i) = __builtin_ia32_vcvtph2ps256(*reinterpret_cast<const Halves8*>(x + i));
    return i;
}

LOCKSTEP_AVX2 std::ptrdiff_t downcast_avx2(const float* x, Half* y, std::ptrdiff_t n) {
    std::ptrdiff_t i = 0;
    for (; i + 8 <= n; i += 8)
        *reinterpret_cast<Halves8*>(y + i) = __builtin_ia32_vcvtps2ph256(*reinterpret_cast<const Floats8*>(x + i), 0);
    return i;
}

}  // namespace

void upcast(const Half* x, float* y, std::ptrdiff_t n) {
    for (std::ptrdiff_t i = has_avx2() ? upcast_avx2(x, y, n) : 0; i < n; ++i) y[i] = static_cast<float>(x[i]);
}

void downcast(const float* x, Half* y, std::ptrdiff_t n) {
    for (std::ptrdiff_t i = has_avx2() ? downcast_avx2(x, y, n) : 0; i < n; ++i) y[i] = Half(x[i]);
}

void upcast(const BFloat16* x, float* y, std::ptrdiff_t n) { has_avx2() ? upcast_avx2(x, y, n) : upcast_bits(x, y, n); }

void downcast(const float* x, BFloat16* y, std::ptrdiff_t n) {
    has_avx2() ? downcast_avx2(x, y, n) : downcast_bits(x, y, n);
}

#undef LOCKSTEP_AVX2
#undef LOCKSTEP_INLINE

}  // namespace lockstep::float16
