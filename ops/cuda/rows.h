// Kernels that hold rows in registers: a warp or a block reads a row once, computes, and writes the result.
#pragma once

#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/internal/arithmetic.h"

/// Marks the call operator of a row's function.
#if defined(__CUDACC__)
#define LOCKSTEP_ROW_FUNCTION __device__ __forceinline__
#else
#define LOCKSTEP_ROW_FUNCTION inline
#endif

namespace lockstep::cuda {

/// Most elements of a row.
inline constexpr int longest_row = 4096;

#if defined(__CUDACC__)
/// The threads that share a row. Each has up to `items` of its elements.
template <int lanes, int item_count>
struct RowGroup {
    static constexpr int items = item_count;
    static constexpr int warp = 32;

    /// Calls use(i, k) for the elements k of this thread, of which it is number i.
    template <class Use>
    __device__ __forceinline__ void each(int size, const Use& use) const {
        const int lane = static_cast<int>(threadIdx.x) % lanes;
#pragma unroll
        for (int i = 0; i < items; ++i) {
            if (i * lanes >= size) break;
            if (i * lanes + lane < size) use(i, i * lanes + lane);
        }
    }
    /// The threads' values joined in one order; all threads receive the result.
    template <class T, class Join>
    __device__ __forceinline__ T joined(T value, const Join& join) const {
        for (int distance = warp / 2; distance > 0; distance /= 2)
            value = join(value, __shfl_xor_sync(~0u, value, distance));
        if constexpr (lanes > warp) {
            __shared__ T of_warps[lanes / warp];
            __syncthreads();  // earlier values may still be read
            if (threadIdx.x % warp == 0) of_warps[threadIdx.x / warp] = value;
            __syncthreads();
            value = of_warps[0];
            for (int i = 1; i < lanes / warp; ++i) value = join(value, of_warps[i]);
        }
        return value;
    }
    /// Whether this thread writes what there is one of in a row.
    __device__ __forceinline__ bool leads() const { return threadIdx.x % lanes == 0; }
};

template <int lanes, int items, class F>
__global__ void __launch_bounds__(block_threads) row_jobs(F function, std::int64_t rows) {
    constexpr int rows_per_block = block_threads / lanes;
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * rows_per_block;
    for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * rows_per_block + threadIdx.x / lanes; row < rows;
         row += step)
        function(RowGroup<lanes, items>(), row);
}
#else
/// One thread that has all elements of a row.
struct RowGroup {
    static constexpr int items = longest_row;

    template <class Use>
    void each(int size, const Use& use) const {
        for (int k = 0; k < size; ++k) use(k, k);
    }
    template <class T, class Join>
    T joined(T value, const Join&) const {
        return value;
    }
    bool leads() const { return true; }
};
#endif

/// The sum of the threads' values.
template <class Group, class T>
LOCKSTEP_ROW_FUNCTION T sum_of(const Group& group, T value) {
    return group.joined(value, [](T a, T b) { return a + b; });
}
/// The largest of the threads' values.
template <class Group, class T>
LOCKSTEP_ROW_FUNCTION T largest_of(const Group& group, T value) {
    return group.joined(value, [](T a, T b) { return a > b ? a : b; });
}

/// Enqueues function(group, row) for all rows of `size` elements, at most longest_row.
template <class F>
void launch_rows(const Queue& queue, const char* name, std::int64_t rows, std::int64_t size, const F& function) {
    if (rows <= 0 || size <= 0) return;
#if defined(__CUDACC__)
    constexpr int warp = 32, items = longest_row / block_threads;
    if (size <= warp * items)
        launch_blocks(queue, name, blocks_for(rows, block_threads / warp), row_jobs<warp, items, F>, F(function),
                      std::int64_t(rows));
    else
        launch_blocks(queue, name, blocks_for(rows, 1), row_jobs<block_threads, items, F>, F(function),
                      std::int64_t(rows));
#else
    launch(queue, name, rows, [function](std::int64_t row) { function(RowGroup(), row); });
#endif
}

}  // namespace lockstep::cuda
