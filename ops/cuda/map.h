// Elementwise kernels: y = f(x...) for tensors of one shape with any strides. If all tensors are dense in the same
// order, a thread computes chunks of adjacent elements. If only the elements of a row are adjacent, or repeat one
// element, it computes a chunk of a row. Otherwise it computes one element.
#pragma once

#include "lockstep/ops/cuda/chunk.h"
#include "lockstep/ops/cuda/index.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/cuda/unroll.h"
#include "lockstep/runtime/cuda/launch.h"

namespace lockstep::cuda {

/// How kernels go through N tensors: y and the inputs.
template <int N>
struct MapPlan {
    StridedIndex<N> elements;
    StridedIndex<N> chunks;  ///< offsets in elements; empty if rows do not consist of whole chunks
    int width = 1;           ///< elements of a chunk
    bool dense = false;      ///< the offset of every element in every tensor is its number
    unsigned repeated = 0;   ///< bit t: a chunk uses one element of tensor t
};

/// `strides`: of y, whose order of memory is that of the threads, and of the inputs.
template <int N>
MapPlan<N> make_map(const Shape& shape, const Shape (&strides)[N], int width) {
    Walk walk = make_walk(shape, strides, Order::memory);
    MapPlan<N> plan;
    plan.elements = strided_index<N>(walk);
    plan.width = width;
    plan.chunks.count = 0;
    const int inner = walk.sizes.dims() - 1;
    if (inner < 0) return plan;
    bool adjacent = true;
    for (int t = 0; t < N; ++t) {
        if (walk.strides[t][inner] == 0 && t > 0) plan.repeated |= 1u << t;
        adjacent = adjacent && walk.strides[t][inner] == ((plan.repeated >> t & 1u) != 0 ? 0 : 1);
    }
    plan.dense = adjacent && inner == 0 && plan.repeated == 0;
    if (!adjacent || walk.sizes[inner] % width != 0) return plan;
    for (int t = 0; t < N; ++t) {
        if ((plan.repeated >> t & 1u) != 0) continue;
        for (int d = 0; d < inner; ++d)
            if (walk.strides[t][d] % width != 0) return plan;
        walk.strides[t][inner] = width;
    }
    walk.sizes[inner] /= width;
    plan.chunks = strided_index<N>(walk);
    return plan;
}

/// Addresses of y and of the inputs.
template <int N>
struct MapOperands {
    void* y;
    const void* x[N > 1 ? N - 1 : 1];

    template <class T>
    LOCKSTEP_HD_INLINE T* output() const {
        return static_cast<T*>(y);
    }
    template <class T>
    LOCKSTEP_HD_INLINE const T* input(int t) const {
        return static_cast<const T*>(x[t]);
    }
};

namespace detail {

/// Number of elements of a chunk of two types.
template <class Y, class X>
constexpr int width_of = chunk_elements(sizeof(Y) > sizeof(X) ? sizeof(Y) : sizeof(X));

/// Elements of the inputs.
template <class X, int N, int width>
struct Inputs {
    X of[N > 1 ? N - 1 : 1][width];

    template <class Y, class F>
    LOCKSTEP_HD_INLINE Y apply(const F& f, int k) const {
        static_assert(N <= 3);
        if constexpr (N == 1)
            return f();
        else if constexpr (N == 2)
            return CastTo<Y>::from(f(upcast(of[0][k])));
        else
            return CastTo<Y>::from(f(upcast(of[0][k]), upcast(of[1][k])));
    }
    template <class Y, class F>
    LOCKSTEP_HD_INLINE void store(const F& f, Y* y) const {
        Y results[width];
        LOCKSTEP_UNROLL
        for (int k = 0; k < width; ++k) results[k] = apply<Y>(f, k);
        store_chunk(results, y);
    }
};

}  // namespace detail

/// Threads of `map_dense`: each computes 8 elements, which share the computation of addresses, or one chunk.
inline std::int64_t dense_threads(std::int64_t count, int width) {
    return ceil_div(count, width < 8 ? 2 * width : width);
}

/// Chunks i, i + threads, ... of dense tensors, so that adjacent threads access adjacent memory.
template <class Y, class X, int N, class F>
LOCKSTEP_HD_INLINE void map_dense(const MapOperands<N>& operands, const F& f, std::int64_t count, std::int64_t threads,
                                  std::int64_t i) {
    constexpr int width = detail::width_of<Y, X>;
    Y* const y = operands.template output<Y>();
    LOCKSTEP_NO_UNROLL
    for (std::int64_t first = i * width; first < count; first += threads * width) {
        if (first + width <= count) {
            detail::Inputs<X, N, width> x;
            LOCKSTEP_UNROLL
            for (int t = 0; t + 1 < N; ++t) load_chunk(operands.template input<X>(t) + first, x.of[t]);
            x.store(f, y + first);
            continue;
        }
        LOCKSTEP_NO_UNROLL
        for (std::int64_t e = first; e < count; ++e) {
            detail::Inputs<X, N, 1> x;
            LOCKSTEP_UNROLL
            for (int t = 0; t + 1 < N; ++t) x.of[t][0] = operands.template input<X>(t)[e];
            y[e] = x.template apply<Y>(f, 0);
        }
    }
}

template <class Y, class X, int N, class F>
LOCKSTEP_HD_INLINE void map_element(const MapOperands<N>& operands, const F& f, const StridedIndex<N>& index,
                                    std::int64_t i) {
    const auto at = index(i);
    detail::Inputs<X, N, 1> x;
    LOCKSTEP_UNROLL
    for (int t = 0; t + 1 < N; ++t) x.of[t][0] = operands.template input<X>(t)[at.of[t + 1]];
    operands.template output<Y>()[at.of[0]] = x.template apply<Y>(f, 0);
}

template <class Y, class X, int N, class F>
struct MapDense {
    static constexpr int resident_blocks = sizeof(X) == 8 ? 3 : 0;
    MapOperands<N> operands;
    F f;
    std::int64_t count, threads;
    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const { map_dense<Y, X>(operands, f, count, threads, i); }
};
template <class Y, class X, int N, class F>
struct MapElements {
    MapOperands<N> operands;
    F f;
    StridedIndex<N> index;
    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const { map_element<Y, X>(operands, f, index, i); }
};
/// A chunk of a row.
template <class Y, class X, int N, class F>
struct MapRows {
    MapOperands<N> operands;
    F f;
    StridedIndex<N> index;
    unsigned repeated;
    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const auto at = index(i);
        detail::Inputs<X, N, detail::width_of<Y, X>> x;
        LOCKSTEP_UNROLL
        for (int t = 0; t + 1 < N; ++t) {
            load_or_repeat(operands.template input<X>(t) + at.of[t + 1], (repeated >> (t + 1) & 1u) != 0, x.of[t]);
        }
        x.store(f, operands.template output<Y>() + at.of[0]);
    }
};

/// Whether chunks of the operands are aligned; elements of y and x have these sizes.
template <int N>
bool has_aligned_chunks(const MapPlan<N>& plan, const MapOperands<N>& operands, std::size_t y_bytes,
                        std::size_t x_bytes) {
    const auto width = static_cast<std::size_t>(plan.width);
    bool aligned = is_aligned(operands.y, width * y_bytes);
    for (int t = 0; t + 1 < N; ++t)
        aligned = aligned && ((plan.repeated >> (t + 1) & 1u) != 0 || is_aligned(operands.x[t], width * x_bytes));
    return aligned;
}

/// Asks `map` for a kernel for chunks of rows.
constexpr bool by_rows = true;

/// Enqueues y = f(x...) for inputs of one dtype. `plan.width`: chunk_elements of the larger elements.
template <class Y, class X, bool rows = false, int N, class F>
void map(const Queue& queue, const char* name, const MapPlan<N>& plan, const F& f, const MapOperands<N>& operands) {
    const bool aligned = has_aligned_chunks(plan, operands, sizeof(Y), sizeof(X));
    const std::int64_t count = plan.elements.count;
    if (aligned && plan.dense) {
        const std::int64_t threads = dense_threads(count, plan.width);
        return launch(queue, name, threads, MapDense<Y, X, N, F>{operands, f, count, threads});
    }
    if constexpr (rows)
        if (aligned && plan.chunks.count > 0)
            return launch(queue, name, plan.chunks.count, MapRows<Y, X, N, F>{operands, f, plan.chunks, plan.repeated});
    launch(queue, name, count, MapElements<Y, X, N, F>{operands, f, plan.elements});
}

}  // namespace lockstep::cuda
