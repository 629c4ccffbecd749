// The loops of loops.h. Included only by loops_generic.cpp, loops_avx2.cpp and loops_avx512.cpp, which set
// LOCKSTEP_LOOPS to the namespace of their instruction set. As in simd.h nothing here may call an inline function that
// is not always inlined: the linker might keep the copy that old processors cannot run.
#pragma once

#include "lockstep/ops/cpu/loops.h"
#include "lockstep/ops/internal/arithmetic.h"
#include "lockstep/runtime/internal/shard_tree.h"

#ifndef LOCKSTEP_LOOPS
#error "included only by the sources that are compiled for one instruction set"
#endif

namespace lockstep::LOCKSTEP_LOOPS {

/// The tables of this instruction set.
extern const Loops<float> floats;
extern const Loops<double> doubles;
extern const Conversions conversion_loops;

using Index = std::ptrdiff_t;

// Runs may be the same (y = a): iterations are independent all the same.
#define LOCKSTEP_FOR(i, n) _Pragma("GCC ivdep") for (Index i = 0; i < (n); ++i)

template <class T, BinaryKind kind, int varies>
void binary(const T* a, const T* b, T* y, Index n) {
    const T one = varies == 1 ? *b : *a;
    LOCKSTEP_FOR(i, n) y[i] = element::binary<kind>(varies == 2 ? one : a[i], varies == 1 ? one : b[i]);
}

template <class T, UnaryKind kind>
void unary(const T* x, T* y, Index n) {
    LOCKSTEP_FOR(i, n) y[i] = element::unary<kind>(x[i]);
}

template <class T>
void relu_backward(const T* dy, const T* y, T* dx, Index n) {
    LOCKSTEP_FOR(i, n) dx[i] = element::relu_backward(dy[i], y[i]);
}

template <class T>
void affine(const T* x, T* y, Index n, T scale, T shift) {
    LOCKSTEP_FOR(i, n) y[i] = element::affine(x[i], scale, shift);
}

template <class T>
void fill(T* y, Index n, T value) {
    LOCKSTEP_FOR(i, n) y[i] = value;
}

/// Adds up the accumulators pairwise.
template <class T>
T fold(T* sums) {
    for (int half = lanes / 2; half > 0; half /= 2)
        for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
    return sums[0];
}

/// sums[i % lanes] += term(i)
template <class T, class Term>
inline __attribute__((always_inline)) void accumulate(T* sums, Index n, Term term) {
    T local[lanes];
    for (int j = 0; j < lanes; ++j) local[j] = sums[j];
    Index i = 0;
    for (; i + lanes <= n; i += lanes)
        for (int j = 0; j < lanes; ++j) local[j] += term(i + j, j);
    for (int j = 0; i + j < n; ++j) local[j] += term(i + j, j);
    for (int j = 0; j < lanes; ++j) sums[j] = local[j];
}

/// y[i] = value(i, i % lanes)
template <class T, class Value>
inline __attribute__((always_inline)) void map_lanes(T* y, Index n, Value value) {
    Index i = 0;
    for (; i + lanes <= n; i += lanes) {
        _Pragma("GCC ivdep") for (int j = 0; j < lanes; ++j) y[i + j] = value(i + j, j);
    }
    for (int j = 0; i + j < n; ++j) y[i + j] = value(i + j, j);
}

template <class T>
T sum(const T* x, Index n) {
    T sums[lanes] = {};
    accumulate(sums, n, [=](Index i, int) { return x[i]; });
    return fold(sums);
}

template <class T>
T squared_error(const T* a, const T* b, Index n) {
    T sums[lanes] = {};
    accumulate(sums, n, [=](Index i, int) { return (a[i] - b[i]) * (a[i] - b[i]); });
    return fold(sums);
}

template <class T>
void squared_error_backward(const T* a, const T* b, T factor, T* y, Index n) {
    LOCKSTEP_FOR(i, n) y[i] = factor * (a[i] - b[i]);
}

template <class T>
void lane_scale(const T* x, const T* factor, T* y, Index n) {
    map_lanes(y, n, [=](Index i, int j) { return x[i] * factor[j]; });
}

template <class T>
void lane_sum(const T* x, Index n, T* sums) {
    accumulate(sums, n, [=](Index i, int) { return x[i]; });
}

template <class T>
void lane_deviation(const T* x, const T* mean, Index n, T* sums) {
    accumulate(sums, n, [=](Index i, int j) { return (x[i] - mean[j]) * (x[i] - mean[j]); });
}

template <class T>
void lane_normalize(const T* x, const T* mean, const T* scale, const T* bias, T* y, Index n) {
    map_lanes(y, n, [=](Index i, int j) { return element::normalize(x[i], mean[j], scale[j], bias[j]); });
}

template <class T>
void lane_backward_sums(const T* x, const T* dy, const T* mean, Index n, T* sums_dy, T* sums_product) {
    accumulate(sums_dy, n, [=](Index i, int) { return dy[i]; });
    accumulate(sums_product, n, [=](Index i, int j) { return dy[i] * (x[i] - mean[j]); });
}

template <class T>
void lane_backward_data(const T* x, const T* dy, const T* mean, const T* scale, const T* mean_dy, const T* slope, T* dx,
                        Index n) {
    map_lanes(dx, n, [=](Index i, int j) {
        return element::normalize_backward(x[i], dy[i], mean[j], scale[j], mean_dy[j], slope[j]);
    });
}

constexpr Index smaller(Index a, Index b) { return a < b ? a : b; }
constexpr Index larger(Index a, Index b) { return a < b ? b : a; }

/// V elements beside each other, wherever they lie. The compiler cuts them into the registers there are.
template <class T, int V>
struct Pack {
    typedef T Values __attribute__((vector_size(V * sizeof(T)), aligned(alignof(T)), may_alias));
    typedef std::uint8_t Bytes __attribute__((vector_size(V), aligned(1), may_alias));
};

template <class T, int V>
inline __attribute__((always_inline)) const typename Pack<T, V>::Values& pack(const T* p) {
    return *reinterpret_cast<const typename Pack<T, V>::Values*>(p);
}

/// `count` neighbouring windows of KH x KW elements that lie inside the plane; KH, KW 0: read from the geometry.
template <class T, int V, int KH, int KW>
inline __attribute__((always_inline)) void pool_inside(const PoolPlanes& g, const T* x, T* y, std::uint8_t* where,
                                                       Index count) {
    using Values = typename Pack<T, V>::Values;
    using Bytes = typename Pack<T, V>::Bytes;
    const Index kernel_h = KH != 0 ? KH : g.window.kernel_h, kernel_w = KW != 0 ? KW : g.window.kernel_w;
    const Index step = g.window.stride_w * V, row = g.w * V;
    for (Index o = 0; o < count; ++o, x += step, y += V, where += V) {
        Values best = pack<T, V>(x);
        auto position = best != best;  // integers as wide as T
        position ^= position;
        auto k = position;
        for (Index i = 0; i < kernel_h; ++i)
            for (Index j = 0; j < kernel_w; ++j, k += 1) {
                const Values value = pack<T, V>(x + i * row + j * V);
                const auto takes = (value > best) | (value != value);  // element::pool_takes
                best = takes ? value : best;
                position = takes ? k : position;
            }
        *reinterpret_cast<Values*>(y) = best;
        *reinterpret_cast<Bytes*>(where) = __builtin_convertvector(position, Bytes);
    }
}

/// 2 x 2 windows that lie inside a plain plane, side by side.
template <class T>
void pool_pairs(const T* upper, const T* lower, T* y, std::uint8_t* where, Index count) {
    LOCKSTEP_FOR(o, count) {
        T best = upper[2 * o];
        std::int32_t position = 0;
        const T second = upper[2 * o + 1], third = lower[2 * o], fourth = lower[2 * o + 1];
        position = element::pool_takes(second, best) ? 1 : position;
        best = element::pool_takes(second, best) ? second : best;
        position = element::pool_takes(third, best) ? 2 : position;
        best = element::pool_takes(third, best) ? third : best;
        position = element::pool_takes(fourth, best) ? 3 : position;
        best = element::pool_takes(fourth, best) ? fourth : best;
        y[o] = best;
        where[o] = static_cast<std::uint8_t>(position);
    }
}

/// One window that the plane's border cuts.
template <class T, int V>
void pool_border(const PoolPlanes& g, const T* x, Index top, Index left, T* y, std::uint8_t* where) {
    const Index i0 = larger(0, -top), i1 = smaller(g.window.kernel_h, g.h - top);
    const Index j0 = larger(0, -left), j1 = smaller(g.window.kernel_w, g.w - left);
    for (int v = 0; v < V; ++v) {
        T best = x[((top + i0) * g.w + left + j0) * V + v];
        Index position = i0 * g.window.kernel_w + j0;
        for (Index i = i0; i < i1; ++i)
            for (Index j = j0; j < j1; ++j) {
                const T value = x[((top + i) * g.w + left + j) * V + v];
                if (!element::pool_takes(value, best)) continue;
                best = value;
                position = i * g.window.kernel_w + j;
            }
        y[v] = best;
        where[v] = static_cast<std::uint8_t>(position);
    }
}

template <class T, int V>
void pool(const PoolPlanes& g, const T* x, T* y, std::uint8_t* where) {
    const PoolGeometry& window = g.window;
    // Columns [inside, end) of windows that no border cuts.
    const Index inside = smaller(g.out_w, (window.pad_w + window.stride_w - 1) / window.stride_w);
    const Index last = g.w + window.pad_w - window.kernel_w;
    const Index end = last < 0 ? inside : larger(inside, smaller(g.out_w, last / window.stride_w + 1));
    for (Index oh = 0; oh < g.out_h; ++oh) {
        const Index top = oh * window.stride_h - window.pad_h;
        const bool cut = top < 0 || top + window.kernel_h > g.h;
        T* const row = y + oh * g.out_w * V;
        std::uint8_t* const row_where = where + oh * g.out_w * V;
        for (Index ow = 0; ow < g.out_w; ++ow) {
            const Index left = ow * window.stride_w - window.pad_w;
            if (!cut && ow == inside && end > inside) {
                const T* const from = x + (top * g.w + left) * V;
                if (V == 1 && window.kernel_h == 2 && window.kernel_w == 2 && window.stride_w == 2) {
                    pool_pairs(from, from + g.w, row + ow, row_where + ow, end - inside);
                } else if (window.kernel_h == 2 && window.kernel_w == 2) {
                    pool_inside<T, V, 2, 2>(g, from, row + ow * V, row_where + ow * V, end - inside);
                } else {
                    pool_inside<T, V, 0, 0>(g, from, row + ow * V, row_where + ow * V, end - inside);
                }
                ow = end - 1;
                continue;
            }
            pool_border<T, V>(g, x, top, left, row + ow * V, row_where + ow * V);
        }
    }
}

template <class T, int V>
void pool_backward(const PoolPlanes& g, const T* dy, const std::uint8_t* where, T* dx) {
    using Values = typename Pack<T, V>::Values;
    using Bytes = typename Pack<T, V>::Bytes;
    using Integers = decltype(Values{} == Values{});
    const PoolGeometry& window = g.window;
    const bool apart = window.stride_h >= window.kernel_h && window.stride_w >= window.kernel_w;
    const bool tiles = apart && window.stride_h == window.kernel_h && window.stride_w == window.kernel_w &&
                       window.pad_h == 0 && window.pad_w == 0 && g.out_h * window.stride_h == g.h &&
                       g.out_w * window.stride_w == g.w;
    if (!tiles) fill(dx, g.h * g.w * V, T(0));
    for (Index oh = 0; oh < g.out_h; ++oh)
        for (Index ow = 0; ow < g.out_w; ++ow, dy += V, where += V) {
            const Index top = oh * window.stride_h - window.pad_h, left = ow * window.stride_w - window.pad_w;
            if (apart) {  // no element lies in two windows
                const Index i0 = larger(0, -top), i1 = smaller(window.kernel_h, g.h - top);
                const Index j0 = larger(0, -left), j1 = smaller(window.kernel_w, g.w - left);
                const Values gradient = pack<T, V>(dy);
                const Integers position = __builtin_convertvector(*reinterpret_cast<const Bytes*>(where), Integers);
                for (Index i = i0; i < i1; ++i) {
                    T* to = dx + ((top + i) * g.w + left + j0) * V;
                    Integers k = Integers{} + static_cast<int>(i * window.kernel_w + j0);
                    for (Index j = j0; j < j1; ++j, to += V, k += 1)
                        *reinterpret_cast<Values*>(to) = position == k ? gradient : Values{};
                }
            } else {
                for (int v = 0; v < V; ++v) {
                    const Index i = where[v] / window.kernel_w, j = where[v] % window.kernel_w;
                    dx[((top + i) * g.w + left + j) * V + v] += dy[v];
                }
            }
        }
}

constexpr int philox_blocks = 16;

/// Random bits of `philox_blocks` neighbouring blocks, four words each.
__attribute__((flatten)) inline void random_words(const StepState& state, std::uint32_t ordinal, std::uint64_t block,
                                                  std::uint32_t* __restrict words) {
    const StepState key = state;
    _Pragma("GCC ivdep") for (int b = 0; b < philox_blocks; ++b) {
        const std::array<std::uint32_t, 4> word = philox(key, ordinal, block + static_cast<std::uint64_t>(b));
        words[4 * b] = word[0];
        words[4 * b + 1] = word[1];
        words[4 * b + 2] = word[2];
        words[4 * b + 3] = word[3];
    }
}

template <class T>
void dropout_mask(T* out, Index begin, Index end, const StepState& state, std::uint32_t ordinal, std::uint64_t first,
                  float p, T keep) {
    std::uint32_t words[4 * philox_blocks];
    for (Index e = begin; e < end;) {
        const std::uint64_t counter = first + static_cast<std::uint64_t>(e);
        random_words(state, ordinal, counter >> 2, words);
        const Index skip = static_cast<Index>(counter & 3);
        const Index count = smaller(end - e, 4 * philox_blocks - skip);
        LOCKSTEP_FOR(i, count) out[e - begin + i] = element::mask_value(words[skip + i], p, keep);
        e += count;
    }
}

template <class T>
void sgd(const Segment& segment, const T* gradient, T* parameter, T* buffer, Index n) {
    const Segment s = segment;
    if (s.momentum == 0) {
        LOCKSTEP_FOR(i, n) {
            T unused = 0;
            element::sgd(s, gradient[i], parameter[i], unused);
        }
    } else {
        LOCKSTEP_FOR(i, n) element::sgd(s, gradient[i], parameter[i], buffer[i]);
    }
}

template <class T>
void sum_over_shards(void* const* in, Index distance, int shards, Index first, Index n, T* y) {
    struct Block {
        T value[lanes];
    };
    for (Index i = 0; i < n; i += lanes) {
        const Index count = smaller(lanes, n - i);
        const Block sums = combine_shards<Block>(
            shards,
            [&](int shard) __attribute__((always_inline)) {
                const T* const from = static_cast<const T*>(in[shard * distance]) + first + i;
                Block block;
                if (count == lanes) {
                    for (int j = 0; j < lanes; ++j) block.value[j] = from[j];
                } else {
                    for (int j = 0; j < lanes; ++j) block.value[j] = j < count ? from[j] : T(0);
                }
                return block;
            },
            [](const Block& a, const Block& b) __attribute__((always_inline)) {
                Block block;
                for (int j = 0; j < lanes; ++j) block.value[j] = a.value[j] + b.value[j];
                return block;
            });
        for (Index j = 0; j < count; ++j) y[first + i + j] = sums.value[j];
    }
}

template <class T>
constexpr Loops<T> make_loops() {
    using B = BinaryKind;
    using U = UnaryKind;
    Loops<T> table{};
    table.binary = {{{binary<T, B::add, 0>, binary<T, B::add, 1>, binary<T, B::add, 2>},
                     {binary<T, B::sub, 0>, binary<T, B::sub, 1>, binary<T, B::sub, 2>},
                     {binary<T, B::mul, 0>, binary<T, B::mul, 1>, binary<T, B::mul, 2>},
                     {binary<T, B::div, 0>, binary<T, B::div, 1>, binary<T, B::div, 2>}}};
    table.unary = {unary<T, U::relu>, unary<T, U::neg>,  unary<T, U::exp>,
                   unary<T, U::log>,  unary<T, U::sqrt>, unary<T, U::square>};
    table.relu_backward = relu_backward<T>;
    table.affine = affine<T>;
    table.fill = fill<T>;
    table.sum = sum<T>;
    table.squared_error = squared_error<T>;
    table.squared_error_backward = squared_error_backward<T>;
    table.lane_scale = lane_scale<T>;
    table.lane_sum = lane_sum<T>;
    table.lane_deviation = lane_deviation<T>;
    table.lane_normalize = lane_normalize<T>;
    table.lane_backward_sums = lane_backward_sums<T>;
    table.lane_backward_data = lane_backward_data<T>;
    table.pool = {pool<T, 1>, pool<T, 8>, pool<T, 16>};
    table.pool_backward = {pool_backward<T, 1>, pool_backward<T, 8>, pool_backward<T, 16>};
    table.dropout_mask = dropout_mask<T>;
    table.sgd = sgd<T>;
    table.sum_over_shards = sum_over_shards<T>;
    return table;
}

inline __attribute__((always_inline)) std::uint32_t float_bits(float x) { return __builtin_bit_cast(std::uint32_t, x); }

void from_bfloat16(const BFloat16* x, float* y, Index n) {
    LOCKSTEP_FOR(i, n) y[i] = __builtin_bit_cast(float, static_cast<std::uint32_t>(x[i].bits) << 16);
}
void to_bfloat16(const float* x, BFloat16* y, Index n) {
    LOCKSTEP_FOR(i, n) {
        const std::uint32_t word = float_bits(x[i]);
        const bool nan = (word & 0x7fffffffu) > 0x7f800000u;
        const std::uint32_t rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
        y[i].bits = static_cast<std::uint16_t>(nan ? (word >> 16) | 0x40u : rounded);
    }
}

#if defined(__F16C__)
typedef float Floats8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef short Halves8 __attribute__((vector_size(16), aligned(2), may_alias));
#endif

void from_half(const Half* x, float* y, Index n) {
    Index i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        *reinterpret_cast<Floats8*>(y + i) = __builtin_ia32_vcvtph2ps256(*reinterpret_cast<const Halves8*>(x + i));
#endif
    for (; i < n; ++i) y[i] = static_cast<float>(x[i]);
}
void to_half(const float* x, Half* y, Index n) {
    Index i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        *reinterpret_cast<Halves8*>(y + i) = __builtin_ia32_vcvtps2ph256(*reinterpret_cast<const Floats8*>(x + i), 0);
#endif
    for (; i < n; ++i) y[i] = Half(x[i]);
}

constinit const Loops<float> floats = make_loops<float>();
constinit const Loops<double> doubles = make_loops<double>();
constinit const Conversions conversion_loops = {from_half, to_half, from_bfloat16, to_bfloat16};

}  // namespace lockstep::LOCKSTEP_LOOPS
