// One vector register of floats, for the kernels that are compiled once per instruction set. Included only by
// kernels_avx2.cpp and kernels_avx512.cpp, which set LOCKSTEP_SIMD_WIDTH and LOCKSTEP_SIMD_NAMESPACE.
//
// These files define everything in the namespace of the instruction set and call no inline function of the standard
// library: the linker keeps one copy of such a function, possibly one that old processors cannot run.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <utility>

#include "lockstep/runtime/dtype.h"
#include "lockstep/runtime/round_up.h"

#ifndef LOCKSTEP_SIMD_WIDTH
#error "included only by the sources that are compiled for one instruction set"
#endif

#define LOCKSTEP_INLINE static inline __attribute__((always_inline))
#define LOCKSTEP_INLINE_LAMBDA __attribute__((always_inline))

namespace lockstep::cpu::LOCKSTEP_SIMD_NAMESPACE {

using Index = std::ptrdiff_t;

constexpr int V = LOCKSTEP_SIMD_WIDTH;
constexpr Index cache_line_floats = 16;

typedef float Vec __attribute__((vector_size(4 * V)));
typedef float UnalignedVec __attribute__((vector_size(4 * V), aligned(4)));
typedef unsigned VecBits __attribute__((vector_size(4 * V)));
typedef unsigned short HalfVec __attribute__((vector_size(2 * V), may_alias));
typedef unsigned short UnalignedHalfVec __attribute__((vector_size(2 * V), may_alias, aligned(2)));

/// Activations and scratch are aligned to the vector, weights and gradients (segments of an arena) to one float.
LOCKSTEP_INLINE Vec load(const float* p) { return *reinterpret_cast<const Vec*>(p); }
LOCKSTEP_INLINE void store(float* p, Vec v) { *reinterpret_cast<Vec*>(p) = v; }
LOCKSTEP_INLINE Vec load_unaligned(const float* p) { return *reinterpret_cast<const UnalignedVec*>(p); }
LOCKSTEP_INLINE void store_unaligned(float* p, Vec v) { *reinterpret_cast<UnalignedVec*>(p) = v; }
LOCKSTEP_INLINE Vec broadcast(float x) { return x - Vec{}; }

/// 16-bit storage: arithmetic widens it and rounds to nearest even, with the bits of BFloat16(float).
LOCKSTEP_INLINE Vec widened(HalfVec v) { return (Vec)(__builtin_convertvector(v, VecBits) << 16); }
LOCKSTEP_INLINE Vec load(const BFloat16* p) { return widened(*reinterpret_cast<const HalfVec*>(p)); }
LOCKSTEP_INLINE Vec load_unaligned(const BFloat16* p) { return widened(*reinterpret_cast<const UnalignedHalfVec*>(p)); }
LOCKSTEP_INLINE float load_one(const float* p) { return *p; }
LOCKSTEP_INLINE float load_one(const BFloat16* p) {
    const unsigned bits = static_cast<unsigned>(p->bits) << 16;
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}
LOCKSTEP_INLINE HalfVec rounded(Vec v) {
    const VecBits bits = (VecBits)v;
    const VecBits upper = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return __builtin_convertvector(v != v ? (bits >> 16) | 0x40 : upper, HalfVec);
}
LOCKSTEP_INLINE void store(BFloat16* p, Vec v) { *reinterpret_cast<HalfVec*>(p) = rounded(v); }
LOCKSTEP_INLINE void store_unaligned(BFloat16* p, Vec v) { *reinterpret_cast<UnalignedHalfVec*>(p) = rounded(v); }

/// Non-temporal store: for outputs too large to remain in a cache until they are read.
LOCKSTEP_INLINE void store_past_cache(float* p, Vec v) {
#if LOCKSTEP_SIMD_WIDTH == 16
    _mm512_stream_ps(p, (__m512)v);
#else
    _mm256_stream_ps(p, (__m256)v);
#endif
}
LOCKSTEP_INLINE void store_past_cache(BFloat16* p, Vec v) {
#if LOCKSTEP_SIMD_WIDTH == 16
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), (__m256i)rounded(v));
#else
    _mm_stream_si128(reinterpret_cast<__m128i*>(p), (__m128i)rounded(v));
#endif
}
/// Orders the stores of store_past_cache before any later action of this thread.
LOCKSTEP_INLINE void fence_past_cache() { _mm_sfence(); }

template <class T>
constexpr T smaller(T a, T b) {
    return a < b ? a : b;
}
template <class T>
constexpr T larger(T a, T b) {
    return a < b ? b : a;
}

/// Exchanges the off-diagonal blocks of this size among V vectors, then those of twice the size, and so on.
template <int block>
LOCKSTEP_INLINE void exchange_blocks(Vec* row) {
    if constexpr (block < V) {
#pragma GCC unroll 16
        for (int i = 0; i < V; ++i) {
            if ((i & block) != 0) continue;
            const Vec a = row[i], b = row[i + block];
            [&]<int... lane>(std::integer_sequence<int, lane...>) LOCKSTEP_INLINE_LAMBDA {
                row[i] = __builtin_shufflevector(a, b, ((lane & block) != 0 ? V + lane - block : lane)...);
                row[i + block] = __builtin_shufflevector(a, b, ((lane & block) != 0 ? V + lane : lane + block)...);
            }
            (std::make_integer_sequence<int, V>());
        }
        exchange_blocks<2 * block>(row);
    }
}

/// V vectors of V floats: rows become columns.
LOCKSTEP_INLINE void transpose(Vec* row) { exchange_blocks<1>(row); }

/// V x V numbers: rows at `source` (row stride in numbers) become columns at `target`.
template <class From, class To>
LOCKSTEP_INLINE void transpose(const From* source, Index source_stride, To* target, Index target_stride) {
    Vec row[V];
#pragma GCC unroll 16
    for (int i = 0; i < V; ++i) row[i] = load_unaligned(source + i * source_stride);
    transpose(row);
#pragma GCC unroll 16
    for (int i = 0; i < V; ++i) store_unaligned(target + i * target_stride, row[i]);
}

}  // namespace lockstep::cpu::LOCKSTEP_SIMD_NAMESPACE
