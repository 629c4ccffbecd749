// Addresses of elements in strided tensors, for kernels.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "lockstep/ops/internal/arithmetic.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep::cuda {

/// Turns the number of an element into its offsets in N tensors of one shape. By value into kernels.
template <int N>
struct StridedIndex {
    int dims = 0;
    bool narrow = true;  // fewer than 2^31 elements: 32-bit divisions, several times faster
    std::int64_t count = 1;
    std::int64_t sizes[Shape::max_dims] = {};
    std::int64_t strides[N][Shape::max_dims] = {};

    struct Offsets {
        std::int64_t of[N];
    };

    LOCKSTEP_ELEMENT Offsets operator()(std::int64_t i) const {
        Offsets result = {};
        for (int d = dims - 1; d > 0; --d) {
            std::int64_t rest;
            std::int64_t position;
            if (narrow) {
                const auto number = static_cast<std::uint32_t>(i);
                const auto size = static_cast<std::uint32_t>(sizes[d]);
                rest = number / size;
                position = number % size;
            } else {
                rest = i / sizes[d];
                position = i % sizes[d];
            }
            for (int t = 0; t < N; ++t) result.of[t] += position * strides[t][d];
            i = rest;
        }
        if (dims > 0)
            for (int t = 0; t < N; ++t) result.of[t] += i * strides[t][0];
        return result;
    }
};

/// Strides of `meta` broadcast to `shape`: 0 where it has one element.
Shape broadcast_strides(const TensorMeta& meta, const Shape& shape);

enum class Order : std::uint8_t {
    logical,  ///< row-major order of the shape
    memory,   ///< that of the first tensor's strides: neighbours in number are neighbours in memory
};
/// Drops dimensions of size 1, orders them, and joins those that all tensors walk through as one.
struct Walk {
    Shape sizes;
    Shape strides[4];
};
Walk make_walk(const Shape& shape, std::initializer_list<Shape> strides, Order order);

template <int N>
StridedIndex<N> make_index(const Shape& shape, const Shape (&strides)[N], Order order) {
    static_assert(N <= 4);
    const Walk walk = [&] {
        if constexpr (N == 1) return make_walk(shape, {strides[0]}, order);
        if constexpr (N == 2) return make_walk(shape, {strides[0], strides[1]}, order);
        if constexpr (N == 3) return make_walk(shape, {strides[0], strides[1], strides[2]}, order);
        if constexpr (N == 4) return make_walk(shape, {strides[0], strides[1], strides[2], strides[3]}, order);
    }();
    StridedIndex<N> index;
    index.dims = walk.sizes.dims();
    index.count = shape.numel();
    index.narrow = index.count < (std::int64_t{1} << 31);
    for (int d = 0; d < index.dims; ++d) {
        index.sizes[d] = walk.sizes[d];
        for (int t = 0; t < N; ++t) index.strides[t][d] = walk.strides[t][d];
    }
    return index;
}

}  // namespace lockstep::cuda
