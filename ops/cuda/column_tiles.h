// Elementwise kernels for matrices whose columns have different values, such as a mean and a scale. A block computes
// those of its columns once, in shared memory.
#pragma once

#include <algorithm>

#include "lockstep/ops/cuda/batch.h"
#include "lockstep/ops/cuda/image_index.h"
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/unroll.h"

namespace lockstep::cuda {

/// Row-major matrices (slices, rows, columns) of packs.
struct ColumnTiles {
    static constexpr int widest = 32;  // columns of a block
    static constexpr int at_once = 4;  // loads of a thread in flight

    std::int64_t slices, rows, columns;
    int tile = 1, lanes = 1;  // columns of a block, and threads of each
    std::int64_t groups = 0;  // tiles that cover the columns
    std::int64_t parts = 0;   // blocks that share the rows of a tile

    ColumnTiles(std::int64_t matrices, std::int64_t height, std::int64_t width)
        : slices(matrices), rows(height), columns(width) {
        while (tile < widest && tile < columns) tile *= 2;
        // Fewer columns if that leaves fewer threads without one.
        while (tile > 8 && round_up(columns, tile / 2) < round_up(columns, tile)) tile /= 2;
        lanes = block_threads / tile;
        groups = ceil_div(columns, tile);
        if (slices * rows * columns == 0) return;
        parts = std::clamp<std::int64_t>(enough_threads / (slices * groups * block_threads), 1,
                                         ceil_div(rows, lanes * at_once));
    }
    std::int64_t blocks() const { return slices * groups * parts; }
};

#if defined(__CUDACC__)
template <class F>
__global__ void __launch_bounds__(block_threads) run_columns(F f, ColumnTiles tiles, std::int64_t blocks) {
    using Value = typename F::Value;
    constexpr int width = F::width;
    constexpr int at_once = sizeof(Value) * width > 128 ? 2 : ColumnTiles::at_once;  // as registers permit
    __shared__ Value values[ColumnTiles::widest * width];
    const int thread = static_cast<int>(threadIdx.x), lane = thread / tiles.tile;
    for (std::int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
        const std::int64_t part_and_slice = quick_quotient(block, tiles.groups);
        const std::int64_t first = (block - part_and_slice * tiles.groups) * tiles.tile;
        const std::int64_t slice = quick_quotient(part_and_slice, tiles.parts);
        const std::int64_t part = part_and_slice - slice * tiles.parts;
        const std::int64_t rest = (tiles.columns - first) * width;  // elements of a row
        for (int i = thread; i < tiles.tile * width && i < rest; i += block_threads)
            values[i] = f.value(slice * tiles.columns * width + first * width + i);
        __syncthreads();
        const std::int64_t column = first + (thread - lane * tiles.tile);
        if (column < tiles.columns) {
            Value own[width];
            LOCKSTEP_UNROLL
            for (int j = 0; j < width; ++j) own[j] = values[(thread - lane * tiles.tile) * width + j];
            const std::int64_t begin = slice * tiles.rows * tiles.columns + column;
            for_loaded<at_once>(
                begin + (part * tiles.lanes + lane) * tiles.columns, begin + tiles.rows * tiles.columns,
                tiles.parts * tiles.lanes * tiles.columns, [&](std::int64_t pack) { return f.load(pack); },
                [&](const auto& loaded, std::int64_t pack) { f.store(pack, loaded, own); });
        }
        __syncthreads();  // the memory is reused
    }
}
#endif

/// Enqueues f for all packs. F offers
///   width                                                   elements of a pack
///   Value value(element) const                              value of element number slice * columns * width + ...
///   Loaded load(pack) const
///   void store(pack, const Loaded&, const Value(&)[width]) const
template <class F>
void launch_columns(const Queue& queue, const char* name, const ColumnTiles& tiles, const F& f) {
    const std::int64_t blocks = tiles.blocks();
    if (blocks == 0) return;
#if defined(__CUDACC__)
    launch_blocks(queue, name, blocks_for(blocks, 1), run_columns<F>, F(f), ColumnTiles(tiles), std::int64_t(blocks));
#else
    const auto loop = [f, tiles] {
        for (std::int64_t pack = 0; pack < tiles.slices * tiles.rows * tiles.columns; ++pack) {
            const std::int64_t slice = pack / (tiles.rows * tiles.columns);
            typename F::Value own[F::width];
            for (int j = 0; j < F::width; ++j)
                own[j] = f.value((slice * tiles.columns + pack % tiles.columns) * F::width + j);
            f.store(pack, f.load(pack), own);
        }
    };
    check(enqueue_host_twin(queue, name, loop), name);
#endif
}

}  // namespace lockstep::cuda
