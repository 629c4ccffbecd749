// The plain loops of the CPU backend, compiled once per instruction set and selected at run time. All process
// contiguous runs, in one thread, in an order that depends only on the length; callers divide work into fixed parts
// (parallel.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "lockstep/ops/internal/arithmetic.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/ops/internal/type_list.h"
#include "lockstep/ops/internal/unary_functions.h"
#include "lockstep/ops/internal/update_rules.h"
#include "lockstep/runtime/random.h"
#include "lockstep/runtime/record.h"

namespace lockstep::cpu {

/// Number of accumulators of reductions: element i is added to accumulator i % lanes, so that several floats can be
/// added at a time. A multiple of every channel block (1, 8, 16): in a blocked tensor, a lane always holds the same
/// channel of its block.
constexpr int lanes = 32;

/// Max pooling of V adjacent channels: (h, w, V) -> (out_h, out_w, V), with `pixel` elements between positions (V, or
/// more if other channels are in between).
struct PoolPlanes {
    std::ptrdiff_t h, w, out_h, out_w;
    PoolGeometry window;
    std::ptrdiff_t pixel;
};

/// Interpolation of V adjacent channels: (h, w, V) -> (out_h, out_w, V), with `pixel` as in PoolPlanes.
template <class T>
struct InterpolatePlanes {
    std::ptrdiff_t h, w, out_h, out_w;
    std::ptrdiff_t pixel;
    const element::Taps<T>* rows;     ///< (out_h)
    const element::Taps<T>* columns;  ///< (out_w)
    bool nearest;                     ///< only the first of the two taps counts
};

/// Numbers with which the gradient of a normalised row is computed; see element::normalize_backward.
template <class T>
struct RowGradient {
    T mean, scale, mean_dy, slope;
};

/// a (m, k) and b (k, n), with any strides.
template <class T>
struct ProductTerms {
    const T* a;
    std::ptrdiff_t a_row, a_column;
    const T* b;
    std::ptrdiff_t b_row, b_column;
    std::ptrdiff_t m, n, k;
};

constexpr std::ptrdiff_t argmax_columns_at_once = 512;

/// Random numbers of one call: element e has the number first + e.
struct Draws {
    const StepCounters& state;
    std::uint32_t ordinal;
    std::uint64_t first;
};

template <class T>
struct Loops {
    using Index = std::ptrdiff_t;
    template <class... Args>
    using Function = void (*)(Args...);

    using BinaryLoops = std::array<Function<const T*, const T*, T*, Index>, 3>;
    /// y[i] = f(a[i], b[i]); y may be a or b. [function][which: both vary, b is one element, a is one element]
    std::array<BinaryLoops, std::tuple_size_v<BinaryFunctions>> binary;
    template <class... Args>
    using UnaryTable = std::array<Function<Args...>, std::tuple_size_v<UnaryFunctions>>;
    /// [function](the function, x, y, n)
    UnaryTable<const void*, const T*, T*, Index> unary;
    /// [function](the function, dy, its saved values, dx, n)
    UnaryTable<const void*, const T*, const T*, T*, Index> unary_backward;
    Function<const T*, T*, Index, T, T> affine;  // (x, y, n, scale, shift)
    Function<T*, Index, T> fill;                 // (y, n, value)
    double (*sum)(const T*, Index);
    double (*squared_error)(const T*, const T*, Index);                 // sum of (a - b)^2
    Function<const T*, const T*, T, T*, Index> squared_error_backward;  // (a, b, factor, y, n): factor * (a - b)

    // Per lane: factors and sums are arrays of `lanes` elements; element i of a run belongs to lane i % lanes.
    Function<const T*, const T*, T*, Index> lane_scale;           // (x, factor, y, n)
    Function<const T*, Index, double*> lane_sum;                  // (x, n, sums): added to sums
    Function<const T*, const T*, Index, double*> lane_deviation;  // (x, mean, n, sums): squared deviations
    Function<const T*, const T*, const T*, const T*, T*, Index> lane_normalize;       // (x, mean, scale, bias, y, n)
    Function<const T*, const T*, const T*, const T*, T*, Index> lane_normalize_relu;  // ReLU of it
    /// (x, dy, mean, n, sums of dy, sums of dy * (x - mean))
    Function<const T*, const T*, const T*, Index, double*, double*> lane_backward_sums;
    /// (x, dy, mean, scale, mean_dy, slope, dx, n): see element::normalize_backward
    Function<const T*, const T*, const T*, const T*, const T*, const T*, T*, Index> lane_backward_data;

    // Rows. Weights and biases may be null, which is 1 and 0.
    T (*largest)(const T*, Index);                                    // n > 0 elements; NaN may be ignored
    Function<const T*, T, T*, Index> exp_below;                       // (x, most, y, n): exp(x - most); y may be x
    double (*product_sum)(const T*, const T*, Index);                 // sum of a * b
    Function<const T*, const T*, T, T*, Index> softmax_gradient;      // (dy, y, total, dx, n): y * (dy - total)
    Function<const T*, const T*, T, T*, Index> log_softmax_gradient;  // (dy, power, total, dx, n): dy - power * total
    double (*deviation)(const T*, T, Index);                          // sum of (x - mean)^2
    Function<const T*, T, T, const T*, const T*, T*, Index> normalize_row;  // (x, mean, scale, weight, bias, y, n)
    /// (x, dy, mean, weight, n, sums of dy * weight and of dy * weight * (x - mean))
    Function<const T*, const T*, T, const T*, Index, double*> normalize_row_sums;
    Function<const T*, const T*, const RowGradient<T>&, const T*, T*, Index> normalize_row_backward;
    /// (x, dy, mean, scale, weights, biases, n): adds dy * (x - mean) * scale, and dy
    Function<const T*, const T*, T, T, double*, double*, Index> add_weight_gradients;
    T (*extremes[2])(const T*, Index);  // the largest or the smallest of n > 0 elements; NaN if one of them is
    Index (*argmax)(const T*, Index);   // the first largest of n > 0 elements; NaN is the largest
    /// (x, size, stride, count, y): the same in `count` adjacent columns, at most argmax_columns_at_once
    Function<const T*, Index, Index, Index, std::int64_t*> argmax_columns;
    Function<const T*, int, T*, Index> add_windows;  // (x, run, y, n): y[i] += the sum of x[i * run ...]

    /// [V = 1, 8, 16](geometry, x, y, where): one plane
    std::array<Function<const PoolPlanes&, const T*, T*, std::uint8_t*>, 3> pool;
    /// [V](geometry, dy, where, y or null, dx): one plane, written as a whole. With y, windows where y <= 0 have no
    /// gradient.
    std::array<Function<const PoolPlanes&, const T*, const std::uint8_t*, const T*, T*>, 3> pool_backward;

    /// [V](geometry, x, y): one plane
    std::array<Function<const InterpolatePlanes<T>&, const T*, T*>, 3> interpolate;
    /// [V](geometry, dy, dx): one plane, written as a whole
    std::array<Function<const InterpolatePlanes<T>&, const T*, T*>, 3> interpolate_backward;

    /// y (rows, out) = x (rows, in) * weight (out, in)^T + bias, which may be null, for outputs [begin, end). For few
    /// rows: the weights are read once and not rearranged. (x, weight, bias, y, rows, in, out, begin, end)
    Function<const T*, const T*, const T*, T*, Index, Index, Index, Index, Index> linear;
    /// Adds a * b to columns [begin, end) of c (m, n), row-major. f64 only.
    Function<const ProductTerms<T>&, T*, Index, Index> product;

    // Random numbers [begin, end) of `Draws`, which are written to `out`.
    Function<T*, Index, Index, const Draws&, int> uniform;             // (out, begin, end, draws, digits)
    Function<T*, Index, Index, const Draws&> normal;                   // (out, begin, end, draws)
    Function<T*, Index, Index, const Draws&, float, T, T> one_of_two;  // (out, begin, end, draws, p, below, above)
    /// [rule](row, followed by the rule's options; norms of a NormRule; gradients, parameters, states, n); unused
    /// states may be null
    std::array<Function<const ParameterRow&, const ParameterNorms&, const T*, T*, T* const*, Index>,
               std::tuple_size_v<UpdateRules>>
        update;
    /// [rule](row, followed by the rule's options; gradients, parameters, states, n, sums of squares): MeasureUpdate,
    /// for elements that begin with a grain; null unless the rule is a NormRule
    std::array<Function<const ParameterRow&, const T*, const T*, T* const*, Index, double*>,
               std::tuple_size_v<UpdateRules>>
        measure_update;
    /// (inputs of all shards, distance of a shard's pointers, shards, first element, n, sums)
    Function<void* const*, Index, int, Index, Index, T*> sum_over_shards;
};

/// The loops for allowed_isa(). T: float or double.
template <class T>
const Loops<T>& loops();

template <class T, class F>
const typename Loops<T>::BinaryLoops& binary_loops() {
    return loops<T>().binary[index_in<F, BinaryFunctions>()];
}
template <>
const Loops<float>& loops<float>();
template <>
const Loops<double>& loops<double>();

/// y = f(x) of n elements; y may be x.
template <class F, class T>
void run_unary(const F& function, const T* x, T* y, std::ptrdiff_t n) {
    loops<T>().unary[index_in<F, UnaryFunctions>()](&function, x, y, n);
}
/// Its gradient, from dy and the saved values of the function; dx may be dy.
template <class F, class T>
void run_unary_backward(const F& function, const T* dy, const T* saved, T* dx, std::ptrdiff_t n) {
    loops<T>().unary_backward[index_in<F, UnaryFunctions>()](&function, dy, saved, dx, n);
}

}  // namespace lockstep::cpu
