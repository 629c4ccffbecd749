// Loops of loops.h for linear layers of few rows; see loops_kernels.h. Both factors are read along their rows, without
// rearrangement: every output is a sum over k, with a partial sum per vector lane, of runs that fit the caches.
#pragma once

#include "lockstep/ops/cpu/loops_pooling.h"

namespace lockstep::cpu::LOCKSTEP_LOOPS {

#if defined(__AVX512F__)
constexpr int register_bytes = 64, tile_rows = 4;
#elif defined(__AVX2__)
constexpr int register_bytes = 32, tile_rows = 3;
#else
constexpr int register_bytes = 16, tile_rows = 2;
#endif
constexpr int tile_outputs = 4;  // tile_rows times this many sums stay in registers
constexpr Index run_bytes = 4096;

template <class T>
using Four = typename Pack<T, 4>::Values;

// Vectors are passed by reference: some are wider than a register of the oldest processors.

/// Adds up the quarters of a vector.
template <class T, int width>
inline __attribute__((always_inline)) void add_fourths(const typename Pack<T, width>::Values& v, Four<T>& sum) {
    if constexpr (width == 16) {
        const typename Pack<T, 8>::Values half = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                                                 __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
        add_fourths<T, 8>(half, sum);
    } else if constexpr (width == 8) {
        sum = __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
    } else {
        sum = v;
    }
}

/// The sums of four vectors.
template <class T>
inline __attribute__((always_inline)) void add_up(const Four<T>* v, Four<T>& sums) {
    const Four<T> left =
        __builtin_shufflevector(v[0], v[1], 0, 4, 2, 6) + __builtin_shufflevector(v[0], v[1], 1, 5, 3, 7);
    const Four<T> right =
        __builtin_shufflevector(v[2], v[3], 0, 4, 2, 6) + __builtin_shufflevector(v[2], v[3], 1, 5, 3, 7);
    sums = __builtin_shufflevector(left, right, 0, 1, 4, 5) + __builtin_shufflevector(left, right, 2, 3, 6, 7);
}

/// Adds to y (rows, outputs) the products of `n` consecutive elements of each row of x and of the weights. `ahead`:
/// number of elements to prefetch.
template <class T, int rows, int outputs>
inline __attribute__((always_inline)) void linear_tile(const T* x, const T* weight, const T* ahead, Index stride,
                                                       Index n, T* y, Index y_stride) {
    constexpr int width = static_cast<int>(larger(4, register_bytes / static_cast<Index>(sizeof(T))));
    using Values = typename Pack<T, width>::Values;
    Values sums[rows][outputs] = {};
    Index k = 0;
    for (; k + width <= n; k += width) {
        __builtin_prefetch(ahead + k, 0, 2);
        Values row[rows];
        for (int r = 0; r < rows; ++r) row[r] = pack<T, width>(x + r * stride + k);
        for (int o = 0; o < outputs; ++o) {
            const Values factor = pack<T, width>(weight + o * stride + k);
            for (int r = 0; r < rows; ++r) sums[r][o] += row[r] * factor;
        }
    }
    for (int r = 0; r < rows; ++r) {
        Four<T> part[4] = {};
        for (int o = 0; o < outputs; ++o) add_fourths<T, width>(sums[r][o], part[o]);
        Four<T> total;
        add_up<T>(part, total);
        for (int o = 0; o < outputs; ++o) {
            T sum = total[o];
            for (Index i = k; i < n; ++i) sum += x[r * stride + i] * weight[o * stride + i];
            y[r * y_stride + o] += sum;
        }
    }
}

/// Meanwhile prefetches the weights of the following outputs, unless these are the `last`.
template <class T, int outputs>
void linear_rows(const T* x, const T* weight, bool last, Index stride, Index n, T* y, Index y_stride, Index rows) {
    Index r = 0;
    for (; r + tile_rows <= rows; r += tile_rows) {
        const Index next = outputs + r / tile_rows;
        linear_tile<T, tile_rows, outputs>(x + r * stride, weight,
                                           weight + (last || next >= 2 * outputs ? 0 : next * stride), stride, n,
                                           y + r * y_stride, y_stride);
    }
    for (; r < rows; ++r)
        linear_tile<T, 1, outputs>(x + r * stride, weight, weight, stride, n, y + r * y_stride, y_stride);
}

template <class T>
void linear(const T* x, const T* weight, const T* bias, T* y, Index rows, Index in, Index out, Index begin, Index end) {
    for (Index r = 0; r < rows; ++r)
        for (Index o = begin; o < end; ++o) y[r * out + o] = bias != nullptr ? bias[o] : T(0);
    constexpr Index run = run_bytes / static_cast<Index>(sizeof(T));
    for (Index k = 0; k < in; k += run) {
        const Index n = smaller(run, in - k);
        Index o = begin;
        for (; o + tile_outputs <= end; o += tile_outputs)
            linear_rows<T, tile_outputs>(x + k, weight + o * in + k, o + 2 * tile_outputs > end, in, n, y + o, out,
                                         rows);
        for (; o < end; ++o) linear_rows<T, 1>(x + k, weight + o * in + k, true, in, n, y + o, out, rows);
    }
}

}  // namespace lockstep::cpu::LOCKSTEP_LOOPS
