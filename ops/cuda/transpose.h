// Copies between tensors whose adjacent elements belong to different dimensions, such as NCHW and NHWC: tiles pass
// through shared memory, so that both tensors are accessed in their own order of memory.
#pragma once

#include "lockstep/ops/cuda/chunk.h"
#include "lockstep/ops/cuda/index.h"
#include "lockstep/ops/cuda/unroll.h"
#include "lockstep/runtime/cuda/launch.h"

namespace lockstep::cuda {

/// A batch of transposes: to[r * to_row + c] = from[r + c * from_column].
struct TransposePlan {
    StridedIndex<2> batch;  // to, from
    std::int64_t rows = 0, columns = 0;
    std::int64_t to_row = 0, from_column = 0;
    std::uint32_t row_tiles = 0, column_tiles = 0;
    Divisor by_row_tiles, by_column_tiles;

    static constexpr int large = 64;  ///< side of the tiles of `transpose_pairs`
    int tile = 32;
    bool pairs = false;  ///< adjacent elements may be moved by two, if addresses suit them
    /// 0 if the copy is not a transpose, or is too small to benefit from tiles.
    std::int64_t tiles() const { return batch.count * row_tiles * column_tiles; }

    struct Tile {
        std::int64_t to, from;       // offsets of its first element
        std::int64_t rows, columns;  // sizes, at most those of a tile
    };
    LOCKSTEP_HD_INLINE Tile tile_at(std::int64_t number) const {
        const auto n = static_cast<std::uint32_t>(number);
        const std::uint32_t rest = by_row_tiles.quotient(n), matrix = by_column_tiles.quotient(rest);
        const std::int64_t r = std::int64_t{tile} * (n - rest * row_tiles);
        const std::int64_t c = std::int64_t{tile} * (rest - matrix * column_tiles);
        const auto at = batch(matrix);
        return {at.of[0] + r * to_row + c, at.of[1] + r + c * from_column, rows - r < tile ? rows - r : tile,
                columns - c < tile ? columns - c : tile};
    }
};

inline TransposePlan make_transpose(const Shape& shape, const Shape& to, const Shape& from, std::size_t bytes) {
    const Walk walk = make_walk(shape, {to, from}, Order::memory);
    const Shape &to_strides = walk.strides[0], &from_strides = walk.strides[1];
    TransposePlan plan;
    int row = -1, column = -1;  // dimensions
    for (int d = 0; d < walk.sizes.dims(); ++d) {
        if (to_strides[d] == 1) column = d;
        if (from_strides[d] == 1) row = d;
    }
    // Runs of one sector and more are worth it: the plain kernel reads a sector for every element.
    const auto worth = [&](int d) { return d >= 0 && walk.sizes[d] * static_cast<std::int64_t>(bytes) >= 32; };
    if (row == column || !worth(row) || !worth(column)) return plan;
    Walk batch;
    for (int d = 0; d < walk.sizes.dims(); ++d) {
        if (d == row || d == column) continue;
        batch.sizes.push_back(walk.sizes[d]);
        for (int t = 0; t < 2; ++t) batch.strides[t].push_back(walk.strides[t][d]);
    }
    plan.batch = strided_index<2>(batch);
    plan.rows = walk.sizes[row];
    plan.columns = walk.sizes[column];
    plan.to_row = to_strides[row];
    plan.from_column = from_strides[column];
    // Smaller matrices would leave most of a larger tile empty, and were slower so on an H200.
    if (bytes == 2 && plan.rows >= TransposePlan::large && plan.columns >= TransposePlan::large) {
        plan.tile = TransposePlan::large;
        plan.pairs = plan.rows % 2 == 0 && plan.columns % 2 == 0;
        for (int d = 0; d < walk.sizes.dims(); ++d)
            plan.pairs =
                plan.pairs && (d == column || to_strides[d] % 2 == 0) && (d == row || from_strides[d] % 2 == 0);
    }
    const std::int64_t row_tiles = ceil_div(plan.rows, plan.tile);
    const std::int64_t column_tiles = ceil_div(plan.columns, plan.tile);
    if (plan.batch.count * row_tiles * column_tiles >= std::int64_t{1} << 31) return plan;
    plan.row_tiles = static_cast<std::uint32_t>(row_tiles);
    plan.column_tiles = static_cast<std::uint32_t>(column_tiles);
    plan.by_row_tiles = Divisor(plan.row_tiles);
    plan.by_column_tiles = Divisor(plan.column_tiles);
    return plan;
}

#if defined(__CUDACC__)
template <class T>
__global__ void __launch_bounds__(block_threads)
    transpose_tiles(TransposePlan plan, std::int64_t tiles, T* to, const T* from) {
    constexpr int tile = 32, warps = block_threads / tile;
    __shared__ T memory[tile][tile + 1];  // one more column: the elements of a column are in different banks
    const int lane = static_cast<int>(threadIdx.x) % tile, warp = static_cast<int>(threadIdx.x) / tile;
    for (std::int64_t number = blockIdx.x; number < tiles; number += gridDim.x) {
        const TransposePlan::Tile at = plan.tile_at(number);
        const T* const source = from + at.from + lane + warp * plan.from_column;
        T* const target = to + at.to + lane + warp * plan.to_row;
        const bool whole = at.rows == tile && at.columns == tile;
        LOCKSTEP_UNROLL
        for (int c = 0; c < tile; c += warps)
            if (whole || (c + warp < at.columns && lane < at.rows))
                memory[c + warp][lane] = source[c * plan.from_column];
        __syncthreads();
        LOCKSTEP_UNROLL
        for (int r = 0; r < tile; r += warps)
            if (whole || (r + warp < at.rows && lane < at.columns)) target[r * plan.to_row] = memory[lane][r + warp];
        __syncthreads();  // the memory is reused
    }
}

/// Elements of 16 bits: a thread moves two, which are adjacent in `from` and later in `to`. A word of the shared memory
/// has two elements of a column. `pairs`: one access serves both.
template <class T>
__global__ void __launch_bounds__(block_threads)
    transpose_pairs(TransposePlan plan, std::int64_t tiles, T* to, const T* from, bool pairs) {
    constexpr int tile = TransposePlan::large, lanes = 32, warps = block_threads / lanes, steps = tile / warps;
    // The words of even columns, then those of odd ones; one more word each, for different banks.
    __shared__ std::uint32_t memory[tile][lanes + 1];
    const int lane = static_cast<int>(threadIdx.x) % lanes, warp = static_cast<int>(threadIdx.x) / lanes;
    for (std::int64_t number = blockIdx.x; number < tiles; number += gridDim.x) {
        const TransposePlan::Tile at = plan.tile_at(number);
        const int rows = static_cast<int>(at.rows), columns = static_cast<int>(at.columns);
        std::uint32_t column_words[steps] = {};
        LOCKSTEP_UNROLL
        for (int i = 0; i < steps; ++i) {
            const int c = i * warps + warp, r = 2 * lane;
            if (c >= columns || r >= rows) continue;
            const T* const source = from + at.from + r + c * plan.from_column;
            if (pairs)
                column_words[i] = *reinterpret_cast<const std::uint32_t*>(source);
            else
                column_words[i] = source[0] | (r + 1 < rows ? std::uint32_t{source[1]} << 16 : 0);
        }
        LOCKSTEP_UNROLL
        for (int i = 0; i < steps; ++i) {
            const int c = i * warps + warp;
            memory[c / 2 + c % 2 * lanes][lane] = column_words[i];
        }
        __syncthreads();
        LOCKSTEP_UNROLL
        for (int step = 0; step < tile; step += 2 * warps) {
            const int r = step + 2 * warp, c = 2 * lane;
            if (r >= rows || c >= columns) continue;
            const std::uint32_t even = memory[lane][r / 2], odd = memory[lanes + lane][r / 2];
            const std::uint32_t words[] = {(even & 0xffffu) | odd << 16, even >> 16 | (odd & 0xffff0000u)};
            LOCKSTEP_UNROLL
            for (int i = 0; i < 2; ++i) {
                if (r + i >= rows) break;
                T* const target = to + at.to + c + (r + i) * plan.to_row;
                if (pairs) {
                    *reinterpret_cast<std::uint32_t*>(target) = words[i];
                    continue;
                }
                target[0] = static_cast<T>(words[i]);
                if (c + 1 < columns) target[1] = static_cast<T>(words[i] >> 16);
            }
        }
        __syncthreads();  // the memory is reused
    }
}
#endif

/// Enqueues the copy. plan.tiles() > 0.
template <class T>
void transpose(const Queue& queue, const char* name, const TransposePlan& plan, T* to, const T* from) {
    const std::int64_t tiles = plan.tiles();
#if defined(__CUDACC__)
    const unsigned blocks = blocks_for(tiles, 1);
    if constexpr (sizeof(T) == 2) {
        if (plan.tile == TransposePlan::large) {
            const bool pairs = plan.pairs && is_aligned(to, 2 * sizeof(T)) && is_aligned(from, 2 * sizeof(T));
            return launch_blocks(queue, name, blocks, transpose_pairs<T>, TransposePlan(plan), std::int64_t(tiles), to,
                                 from, bool(pairs));
        }
    }
    launch_blocks(queue, name, blocks, transpose_tiles<T>, TransposePlan(plan), std::int64_t(tiles), to, from);
#else
    const auto loop = [plan, tiles, to, from] {
        for (std::int64_t number = 0; number < tiles; ++number) {
            const TransposePlan::Tile at = plan.tile_at(number);
            for (std::int64_t r = 0; r < at.rows; ++r)
                for (std::int64_t c = 0; c < at.columns; ++c)
                    to[at.to + c + r * plan.to_row] = from[at.from + r + c * plan.from_column];
        }
    };
    check(enqueue_host_twin(queue, name, loop), name);
#endif
}

}  // namespace lockstep::cuda
