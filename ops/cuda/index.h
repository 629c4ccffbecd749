// Addresses of elements in strided tensors, for kernels.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "lockstep/ops/cuda/unroll.h"
#include "lockstep/ops/internal/arithmetic.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep::cuda {

/// Division by a number that the host knows, as a multiplication: exact for dividends below 2^31.
struct Divisor {
    std::uint32_t multiplier = 1, shift = 0;

    Divisor() = default;
    explicit Divisor(std::uint32_t divisor) {  // from 1 to 2^31
        while ((std::uint64_t{1} << shift) < divisor) ++shift;
        const std::uint64_t rest = (std::uint64_t{1} << shift) - divisor;
        multiplier = static_cast<std::uint32_t>((rest << 32) / divisor + 1);
    }
    LOCKSTEP_HD_INLINE std::uint32_t quotient(std::uint32_t dividend) const {
#if defined(__CUDA_ARCH__)
        const std::uint32_t high = __umulhi(dividend, multiplier);
#else
        const auto high = static_cast<std::uint32_t>((std::uint64_t{dividend} * multiplier) >> 32);
#endif
        return (high + dividend) >> shift;
    }
};

/// Converts the number of an element to its offsets in N tensors of one shape. Passed by value to kernels.
template <int N>
struct StridedIndex {
    int dims = 0;
    bool narrow = true;  // number and offsets of every element are below 2^31
    std::int64_t count = 1;
    // The outermost dimension, followed by the others from the innermost outwards.
    std::int64_t sizes[Shape::max_dims] = {};
    std::int64_t strides[N][Shape::max_dims] = {};
    Divisor divisors[Shape::max_dims];

    struct Offsets {
        std::int64_t of[N];
    };

    LOCKSTEP_HD_INLINE Offsets operator()(std::int64_t i) const {
        return narrow ? narrow_offsets(static_cast<std::uint32_t>(i)) : wide_offsets(i);
    }

private:
    LOCKSTEP_HD_INLINE Offsets narrow_offsets(std::uint32_t rest) const {
        std::uint32_t sums[N] = {};
        LOCKSTEP_UNROLL  // parameters at constant addresses
            for (int d = 1; d < Shape::max_dims; ++d) {
            if (d >= dims) break;
            const std::uint32_t quotient = divisors[d].quotient(rest);
            const std::uint32_t position = rest - quotient * static_cast<std::uint32_t>(sizes[d]);
            for (int t = 0; t < N; ++t) sums[t] += position * static_cast<std::uint32_t>(strides[t][d]);
            rest = quotient;
        }
        Offsets result;
        for (int t = 0; t < N; ++t)
            result.of[t] = static_cast<std::int64_t>(sums[t] + rest * static_cast<std::uint32_t>(strides[t][0]));
        return result;
    }
    LOCKSTEP_HD_INLINE Offsets wide_offsets(std::int64_t rest) const {
        Offsets result = {};
        LOCKSTEP_NO_UNROLL
        for (int d = 1; d < dims; ++d) {
            for (int t = 0; t < N; ++t) result.of[t] += rest % sizes[d] * strides[t][d];
            rest /= sizes[d];
        }
        for (int t = 0; t < N; ++t) result.of[t] += rest * strides[t][0];
        return result;
    }
};

/// Strides of `meta` broadcast to `shape`: 0 in dimensions of size 1.
Shape broadcast_strides(const TensorMeta& meta, const Shape& shape);

enum class Order : std::uint8_t {
    logical,  ///< row-major order of the shape
    memory,   ///< order of the first tensor's strides: consecutive numbers are adjacent in memory
};
/// Drops dimensions of size 1, orders the others, and merges those that all tensors traverse as one.
struct Walk {
    Shape sizes;
    Shape strides[4];
};
Walk make_walk(const Shape& shape, std::initializer_list<Shape> strides, Order order);

template <int N>
Walk make_walk(const Shape& shape, const Shape (&strides)[N], Order order) {
    static_assert(N <= 4);
    if constexpr (N == 1) return make_walk(shape, {strides[0]}, order);
    if constexpr (N == 2) return make_walk(shape, {strides[0], strides[1]}, order);
    if constexpr (N == 3) return make_walk(shape, {strides[0], strides[1], strides[2]}, order);
    if constexpr (N == 4) return make_walk(shape, {strides[0], strides[1], strides[2], strides[3]}, order);
}

/// The index of the elements of a walk through N tensors.
template <int N>
StridedIndex<N> strided_index(const Walk& walk) {
    StridedIndex<N> index;
    index.dims = walk.sizes.dims();
    index.count = walk.sizes.numel();
    constexpr std::int64_t limit = std::int64_t{1} << 31;
    std::int64_t largest[N] = {};
    for (int d = 0; d < index.dims; ++d) {
        const int from = d == 0 ? 0 : index.dims - d;
        index.sizes[d] = walk.sizes[from];
        if (walk.sizes[from] > 0 && walk.sizes[from] < limit)
            index.divisors[d] = Divisor(static_cast<std::uint32_t>(walk.sizes[from]));
        for (int t = 0; t < N; ++t) {
            index.strides[t][d] = walk.strides[t][from];
            largest[t] += (walk.sizes[from] - 1) * walk.strides[t][from];
        }
    }
    index.narrow = index.count < limit;
    for (const std::int64_t offset : largest) index.narrow = index.narrow && offset < limit;
    return index;
}

template <int N>
StridedIndex<N> make_index(const Shape& shape, const Shape (&strides)[N], Order order) {
    return strided_index<N>(make_walk(shape, strides, order));
}

}  // namespace lockstep::cuda
