// Forward and backward data by Winograd F(4x4, 3x3). Included once per instruction set, see simd.h.
//
// Every output channel of a tile is one sum over all input channels in a fixed order, so bits depend neither on the
// blocking of tiles nor on the number of threads.
#pragma once

#include <omp.h>

#include "lockstep/ops/cpu/conv/winograd_gemm.h"
#include "lockstep/ops/cpu/conv/winograd_kernels.h"
#include "lockstep/ops/cpu/conv/winograd_transforms.h"

namespace lockstep::cpu::LOCKSTEP_SIMD_NAMESPACE {

constexpr Index point_bytes = points * static_cast<Index>(sizeof(float));  // transformed bytes per tile and channel

/// An odd number of cache lines, so that the 36 planes spread over all sets of a cache.
constexpr Index odd_lines(Index floats) { return (ceil_div(floats, cache_line_floats) | 1) * cache_line_floats; }

/// Outputs of this many bytes will have left the second-level cache when they are read again. An ordinary store would
/// first read the line from memory, and would evict transformed tiles.
constexpr Index past_cache_bytes = 1 << 20;

/// One convolution: input, output (channels, size), filters as they are stored (k, c).
struct Convolution {
    Image input, output;
    Index pad;
    Index k, c;
    bool backward;
};

static Convolution forward_convolution(const WinogradShape& s) {
    return {{s.n, s.c, s.h, s.w}, {s.n, s.k, s.out_h(), s.out_w()}, s.pad, s.k, s.c, false};
}
static Convolution backward_convolution(const WinogradShape& s) {
    return {{s.n, s.k, s.out_h(), s.out_w()}, {s.n, s.c, s.h, s.w}, 2 - s.pad, s.k, s.c, true};
}

/// Blocking of a convolution. Usually by tiles: all filters are transformed once, then each block of tiles passes its
/// three stages in one thread's cache. If filters are large and tiles few (U-Net's lowest levels), by panels: all tiles
/// are transformed once. Transformed filters then exist only for one panel of 2V output channels and one group of input
/// channels at a time, in the second-level cache.
struct ConvolutionPlan {
    bool by_panel;
    Index panels;                                   // panels of 2V output channels
    Index block_tiles, blocks;                      // capacity and number of blocks of tiles
    Index input_plane, output_plane, filter_plane;  // floats per point
    Index shared_floats, thread_floats;             // scratch

    ConvolutionPlan(const Convolution& conv, const Tiles& tiles, int threads) {
        const Index in = conv.input.c, out = conv.output.c;
        panels = ceil_div(out / V, 2);
        by_panel = point_bytes * in * out > (16 << 20) && point_bytes * in * tiles.count < (12 << 20);
        if (by_panel) {
            block_tiles = tiles.count;
            blocks = 1;
            output_plane = odd_lines(block_tiles * 2 * V);
            filter_plane = odd_lines(channel_group * 2 * V);
            input_plane = odd_lines(block_tiles * in);
            shared_floats = points * input_plane;
            thread_floats = points * (output_plane + filter_plane);
            return;
        }
        // About 500 KiB of transformed tiles, whole micro-tiles, and equally many blocks for each thread.
        const Index wanted = (500 << 10) / point_bytes / (in + out) / tile_rows;
        block_tiles = larger<Index>(28 / tile_rows, smaller<Index>(wanted, 84 / tile_rows)) * tile_rows;
        blocks = round_up(ceil_div(tiles.count, block_tiles), threads);
        block_tiles = round_up(ceil_div(tiles.count, blocks), tile_rows);
        blocks = ceil_div(tiles.count, block_tiles);
        input_plane = odd_lines(block_tiles * in);
        output_plane = odd_lines(block_tiles * out);
        filter_plane = odd_lines(in * out);
        shared_floats = points * filter_plane;
        thread_floats = points * (input_plane + output_plane);
    }
    Index scratch_floats(int threads) const { return shared_floats + threads * thread_floats; }
};

/// Bias and destination of one convolution, and the function applied to the sums.
template <class Stored>
struct Output {
    Stored* data;
    const float* bias;  // per channel, or null
    After after;
    const Stored* made;  // see write_tiles
    bool past_cache;

    void write(const Image& image, const Tiles& tiles, Index block, Index first, Index last, const float* source,
               Index plane) const {
        const auto write = past_cache ? writer<true>() : writer<false>();
        write(data, image, tiles, block, first, last, source, plane,
              bias != nullptr ? load_unaligned(bias + block * V) : Vec{}, made);
    }

private:
    template <bool past>
    auto writer() const -> decltype(&write_tiles<past, After::nothing, Stored>) {
        switch (after) {
            case After::relu: return write_tiles<past, After::relu, Stored>;
            case After::relu_backward: return write_tiles<past, After::relu_backward, Stored>;
            case After::nothing: break;
        }
        return write_tiles<past, After::nothing, Stored>;
    }
};

static void multiply_any_panel(Index vectors, bool add, const float* u, Index capacity, Index tiles, Index channels,
                               const float* filters, float* out) {
    if (vectors == 2)
        multiply_panel<2>(add, u, capacity, tiles, channels, filters, out);
    else
        multiply_panel<1>(add, u, capacity, tiles, channels, filters, out);
}

template <class Stored>
static void convolve_by_tiles(const Convolution& conv, const ConvolutionPlan& plan, const Tiles& tiles,
                              const Stored* source, const Stored* w, const Output<Stored>& output, float* scratch,
                              int threads) {
    const Index in = conv.input.c, out = conv.output.c, capacity = plan.block_tiles;
    float* filters = scratch;
#pragma omp parallel num_threads(threads)
    {
        float* input = scratch + plan.shared_floats + omp_get_thread_num() * plan.thread_floats;
        float* product = input + points * plan.input_plane;
#pragma omp for collapse(2) schedule(static)
        for (Index panel = 0; panel < plan.panels; ++panel)
            for (Index block = 0; block < in / V; ++block)
                transform_filters(w, conv.k, conv.c, conv.backward, panel, block,
                                  filters + (panel * 2 * in + block * V * smaller<Index>(2, out / V - 2 * panel)) * V,
                                  plan.filter_plane);
#pragma omp for schedule(static)
        for (Index b = 0; b < plan.blocks; ++b) {
            const Index first = b * capacity, last = smaller(tiles.count, first + capacity);
            for (Index c = 0; c < in / V; ++c)
                transform_windows<InputTransform>(source, conv.input, tiles, conv.pad, c, first, last,
                                                  input + c * capacity * V, plan.input_plane);
            for (Index point = 0; point < points; ++point)
                for (Index panel = 0; panel < plan.panels; ++panel)
                    multiply_any_panel(smaller<Index>(2, out / V - 2 * panel), false, input + point * plan.input_plane,
                                       capacity, last - first, in,
                                       filters + point * plan.filter_plane + panel * 2 * V * in,
                                       product + point * plan.output_plane + panel * 2 * V * capacity);
            for (Index c = 0; c < out / V; ++c)
                output.write(conv.output, tiles, c, first, last, product + c * capacity * V, plan.output_plane);
        }
    }
}

template <class Stored>
static void convolve_by_panels(const Convolution& conv, const ConvolutionPlan& plan, const Tiles& tiles,
                               const Stored* source, const Stored* w, const Output<Stored>& output, float* scratch,
                               int threads) {
    const Index in = conv.input.c, out = conv.output.c, capacity = plan.block_tiles;
    float* input = scratch;
#pragma omp parallel num_threads(threads)
    {
        float* product = scratch + plan.shared_floats + omp_get_thread_num() * plan.thread_floats;
        float* filters = product + points * plan.output_plane;
#pragma omp for schedule(static)
        for (Index c = 0; c < in / V; ++c)
            transform_windows<InputTransform>(source, conv.input, tiles, conv.pad, c, 0, tiles.count,
                                              input + c * capacity * V, plan.input_plane);
#pragma omp for schedule(static)
        for (Index panel = 0; panel < plan.panels; ++panel) {
            const Index vectors = smaller<Index>(2, out / V - 2 * panel);
            for (Index first = 0; first < in; first += channel_group) {
                const Index channels = smaller(channel_group, in - first);
                for (Index block = 0; block < channels / V; ++block)
                    transform_filters(w, conv.k, conv.c, conv.backward, panel, first / V + block,
                                      filters + block * V * vectors * V, plan.filter_plane);
                for (Index point = 0; point < points; ++point)
                    multiply_any_panel(vectors, first > 0, input + point * plan.input_plane + first * capacity,
                                       capacity, tiles.count, channels, filters + point * plan.filter_plane,
                                       product + point * plan.output_plane);
            }
            for (Index j = 0; j < vectors; ++j)
                output.write(conv.output, tiles, 2 * panel + j, 0, tiles.count, product + j * capacity * V,
                             plan.output_plane);
        }
    }
}

template <class Stored>
static void convolve(const Convolution& conv, const Stored* source, const Stored* w, const float* bias, After after,
                     const Stored* made, Stored* target, float* scratch, int threads) {
    const Image& out = conv.output;
    const Tiles tiles(out);
    const ConvolutionPlan plan(conv, tiles, threads);
    const Index bytes = out.n * out.c * out.h * out.w * static_cast<Index>(sizeof(Stored));
    const Output<Stored> output{target, bias, after, made, bytes >= past_cache_bytes};
    if (plan.by_panel)
        convolve_by_panels(conv, plan, tiles, source, w, output, scratch, threads);
    else
        convolve_by_tiles(conv, plan, tiles, source, w, output, scratch, threads);
}

static Index convolution_scratch_floats(const Convolution& conv, int threads) {
    return ConvolutionPlan(conv, Tiles(conv.output), threads).scratch_floats(threads);
}

}  // namespace lockstep::cpu::LOCKSTEP_SIMD_NAMESPACE
