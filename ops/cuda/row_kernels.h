// Kernels that hold rows in registers: a warp or a block reads a row once, computes, and writes the result.
#pragma once

#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/pack.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/cuda/unroll.h"
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

/// The threads that share a row. Each has up to `packs` packs of `width` adjacent elements. If `whole`, rows consist of
/// whole packs, and an access moves one; otherwise each element is an access, and the last pack of a row may be partly
/// filled. A host twin has one thread.
template <int lanes, int pack_count, int pack_width, bool whole>
struct RowGroup {
    static constexpr int threads = lanes, packs = pack_count, width = pack_width;
    template <class T>
    using Packs = Pack<T, width>[packs];

    /// Calls use(p, k) for the packs of this thread: number p begins at element k of the row.
    template <class Use>
    LOCKSTEP_ROW_FUNCTION void each_pack(int size, const Use& use) const {
        const int first = lane() * width;
        LOCKSTEP_UNROLL
        for (int p = 0; p < packs; ++p) {
            const int k = p * lanes * width + first;
            if (k < size) use(p, k);
        }
    }
    /// Calls use(p, j) for the elements of this thread: number j of pack p.
    template <class Use>
    LOCKSTEP_ROW_FUNCTION void each(int size, const Use& use) const {
        each_pack(size, [&](int p, int k) {
            LOCKSTEP_UNROLL
            for (int j = 0; j < width; ++j)
                if (whole || k + j < size) use(p, j);
        });
    }
    /// The pack at element k of a row that begins at `row`; zeros after the end of the row.
    template <class T>
    LOCKSTEP_ROW_FUNCTION Pack<T, width> load(const T* row, int k, int size) const {
        if constexpr (whole) return load_pack<width>(row + k);
        Pack<T, width> pack = {};
        LOCKSTEP_UNROLL
        for (int j = 0; j < width; ++j)
            if (k + j < size) pack.of[j] = row[k + j];
        return pack;
    }
    /// Loads all packs of this thread, without a use in between: no load waits for another.
    template <class T>
    LOCKSTEP_ROW_FUNCTION void load(const T* row, int size, Packs<T>& to) const {
        each_pack(size, [&](int p, int k) { to[p] = load(row, k, size); });
    }
    /// The same, converted to T.
    template <class T, class Stored>
    LOCKSTEP_ROW_FUNCTION void load_as(const Stored* row, int size, Packs<T>& to) const {
        if constexpr (std::is_same_v<T, Stored>) {
            load(row, size, to);
        } else {
            Packs<Stored> stored;
            load(row, size, stored);
            each_pack(size, [&](int p, int) {
                LOCKSTEP_UNROLL
                for (int j = 0; j < width; ++j) to[p].of[j] = upcast(stored[p].of[j]);
            });
        }
    }
    template <class T>
    LOCKSTEP_ROW_FUNCTION void store(T* row, int k, int size, const Pack<T, width>& pack) const {
        if constexpr (whole) {
            store_pack(row + k, pack);
        } else {
            LOCKSTEP_UNROLL
            for (int j = 0; j < width; ++j)
                if (k + j < size) row[k + j] = pack.of[j];
        }
    }
#if defined(__CUDACC__)
    __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x) % lanes; }
    /// The threads' values joined in one order; all threads receive the result.
    template <class T, class Join>
    __device__ __forceinline__ T joined(T value, const Join& join) const {
        constexpr int warp = 32;
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
#else
    static int lane() { return 0; }
    template <class T, class Join>
    T joined(T value, const Join&) const {
        return value;
    }
#endif
    /// Whether this thread writes the values that a row has once.
    LOCKSTEP_ROW_FUNCTION bool leads() const { return lane() == 0; }
};

#if defined(__CUDACC__)
template <class Group, int lanes, class F>
__global__ void __launch_bounds__(block_threads, 2) row_jobs(F function, std::int64_t rows) {
    constexpr int rows_per_block = block_threads / lanes;
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * rows_per_block;
    for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * rows_per_block + threadIdx.x / lanes; row < rows;
         row += step)
        function(Group(), row);
}
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

/// Enqueues a function of rows, which consist of packs of F::Element that may be `whole`.
template <bool whole, class F>
void launch_packed_rows(const Queue& queue, const char* name, std::int64_t rows, [[maybe_unused]] std::int64_t size,
                        const F& function) {
    constexpr int width = widest<typename F::Element>;
#if defined(__CUDACC__)
    constexpr int warp = 32, of_warp = 32, of_block = longest_row / block_threads;  // elements of a thread
    if (size <= warp * of_warp)
        launch_blocks(queue, name, blocks_for(rows, block_threads / warp),
                      row_jobs<RowGroup<warp, of_warp / width, width, whole>, warp, F>, F(function),
                      std::int64_t(rows));
    else
        launch_blocks(queue, name, blocks_for(rows, 1),
                      row_jobs<RowGroup<block_threads, of_block / width, width, whole>, block_threads, F>, F(function),
                      std::int64_t(rows));
#else
    using Group = RowGroup<1, longest_row / width, width, whole>;
    launch(queue, name, rows, [function](std::int64_t row) { function(Group(), row); });
#endif
}

/// Enqueues function(group, row) for all rows of `size` elements, at most longest_row. F::Element: type of the largest
/// elements. `aligned`: whether the widest packs of them may begin at all addresses; the results do not depend on it.
template <class F>
void launch_rows(const Queue& queue, const char* name, std::int64_t rows, std::int64_t size, const F& function,
                 bool aligned) {
    if (rows <= 0 || size <= 0) return;
    if (aligned && size % widest<typename F::Element> == 0)
        launch_packed_rows<true>(queue, name, rows, size, function);
    else
        launch_packed_rows<false>(queue, name, rows, size, function);
}

/// Enqueues function(group, row) for all rows, of any size: the function loops over elements group.lane(), group.lane()
/// + Group::threads, ...
template <class F>
void launch_rows_in_memory(const Queue& queue, const char* name, std::int64_t rows, [[maybe_unused]] std::int64_t size,
                           const F& function) {
    if (rows <= 0) return;
#if defined(__CUDACC__)
    constexpr int warp = 32, of_warp = 32;  // elements of a thread
    if (size <= warp * of_warp)
        launch_blocks(queue, name, blocks_for(rows, block_threads / warp),
                      row_jobs<RowGroup<warp, 1, 1, false>, warp, F>, F(function), std::int64_t(rows));
    else
        launch_blocks(queue, name, blocks_for(rows, 1),
                      row_jobs<RowGroup<block_threads, 1, 1, false>, block_threads, F>, F(function),
                      std::int64_t(rows));
#else
    launch(queue, name, rows, [function](std::int64_t row) { function(RowGroup<1, 1, 1, false>(), row); });
#endif
}

}  // namespace lockstep::cuda
