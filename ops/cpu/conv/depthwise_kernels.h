// Depthwise convolutions of images in nChw{V}c; see simd.h.
//
// A vector holds a pixel's channels of one block, so that blocks and images are independent planes. A plane is small:
// it is copied once with its margins, and no loop has to handle borders.
#pragma once

#include <omp.h>

#include "lockstep/ops/cpu/conv/depthwise_kernels_table.h"
#include "lockstep/ops/cpu/simd.h"

namespace lockstep::cpu::LOCKSTEP_SIMD_NAMESPACE {

/// Maximum number of ranges of images that the weight gradient sums, each on one thread; their sums are added in order.
constexpr Index depthwise_slices = 16;

/// Number of pixels that the weight gradient sums in registers before it adds them to the sums in memory, at least:
/// this reduces rounding errors.
constexpr Index summed_pixels = 64;

/// Layout of scratch, in floats.
struct DepthwisePlan {
    Index blocks;  // blocks of V channels
    Index taps;
    Index slices;
    Index filters;  // (blocks, taps + 1, V), the bias last; each slice of a gradient has its sums in this form
    Index plane;    // a thread's plane with margins; 0 floats without margins

    DepthwisePlan(const DepthwiseSizes& s, const DepthwisePass& pass)
        : blocks(ceil_div<Index>(s.c, V)),
          taps(s.kh * s.kw),
          slices(smaller(s.n, depthwise_slices)),
          filters(round_up(blocks * (taps + 1) * V, cache_line_floats)),
          plane(pass.has_margins() ? round_up(pass.rows * pass.columns * V, cache_line_floats) : 0) {}
    Index scratch_floats(int threads) const { return slices * filters + threads * plane; }
};

/// A plane with its margins, at `copy` if it has any.
static const float* with_margins(const DepthwisePass& pass, const float* plane, float* copy) {
    if (!pass.has_margins()) return plane;
    float* to = copy;
    for (Index row = 0; row < pass.rows; ++row) {
        const Index from_row = row - pass.top;
        const bool inside = from_row >= 0 && from_row < pass.h;
        const Index left = inside ? pass.left : pass.columns, last = inside ? pass.left + pass.w : pass.columns;
        Index column = 0;
        for (; column < left; ++column, to += V) store(to, Vec{});
        const float* from = plane + from_row * pass.w * V;
        for (; column < last; ++column, to += V, from += V) store(to, load(from));
        for (; column < pass.columns; ++column, to += V) store(to, Vec{});
    }
    return copy;
}

/// Columns of a phase, each the sum of `start` and the taps. step, result_step: floats from one column to the next.
template <int columns>
static void convolve_columns(const DepthwiseTap* taps, Index count, const float* source, Index step,
                             const float* weights, Vec start, float* result, Index result_step) {
    Vec sum[columns];
#pragma GCC unroll 8
    for (int i = 0; i < columns; ++i) sum[i] = start;
    for (Index t = 0; t < count; ++t) {
        const Vec weight = load(weights + taps[t].weight * V);
        const float* from = source + taps[t].offset * V;
#pragma GCC unroll 8
        for (int i = 0; i < columns; ++i) sum[i] += load(from + i * step) * weight;
    }
#pragma GCC unroll 8
    for (int i = 0; i < columns; ++i) store(result + i * result_step, sum[i]);
}

/// Columns whose sums are in registers at once.
constexpr int most_columns = 8;

/// Fewer than `columns` columns, or as many.
template <int columns>
static void convolve_last_columns(Index remaining, const DepthwiseTap* taps, Index count, const float* source,
                                  Index step, const float* weights, Vec start, float* result, Index result_step) {
    if (remaining == columns)
        return convolve_columns<columns>(taps, count, source, step, weights, start, result, result_step);
    if constexpr (columns > 1)
        convolve_last_columns<columns - 1>(remaining, taps, count, source, step, weights, start, result, result_step);
}

static void convolve_phase(const DepthwisePass& pass, const DepthwisePhase& phase, const float* source,
                           const float* weights, Vec start, float* result) {
    const DepthwiseTap* taps = pass.taps + phase.first_tap;
    const Index step = pass.column_step * V, result_step = phase.column_step * V;
    for (Index row = 0; row < phase.rows; ++row) {
        const float* from = source + row * pass.row_step * pass.columns * V;
        float* to = result + ((phase.first_row + row * phase.row_step) * pass.result_w + phase.first_column) * V;
        Index column = 0;
        for (; column + most_columns <= phase.columns; column += most_columns)
            convolve_columns<most_columns>(taps, phase.taps, from + column * step, step, weights, start,
                                           to + column * result_step, result_step);
        if (column < phase.columns)
            convolve_last_columns<most_columns - 1>(phase.columns - column, taps, phase.taps, from + column * step,
                                                    step, weights, start, to + column * result_step, result_step);
    }
}

/// Called by all threads: weights and bias in the order of DepthwisePlan::filters.
static void pack_filters(const DepthwiseSizes& s, const DepthwisePlan& plan, const float* w, const float* bias,
                         float* filters) {
#pragma omp for schedule(static)
    for (Index block = 0; block < plan.blocks; ++block)
        for (Index tap = 0; tap <= plan.taps; ++tap)
            for (Index lane = 0; lane < V; ++lane) {
                const Index channel = block * V + lane;
                float value = 0;
                if (channel < s.c && tap < plan.taps) value = w[channel * plan.taps + tap];
                if (channel < s.c && tap == plan.taps && bias != nullptr) value = bias[channel];
                filters[(block * (plan.taps + 1) + tap) * V + lane] = value;
            }
}

static void depthwise_convolve(const DepthwiseSizes& s, const DepthwisePass& pass, const float* source, const float* w,
                               const float* bias, float* result, float* scratch, int threads) {
    const DepthwisePlan plan(s, pass);
#pragma omp parallel num_threads(threads)
    {
        float* copy = scratch + plan.filters + omp_get_thread_num() * plan.plane;
        pack_filters(s, plan, w, bias, scratch);
#pragma omp for schedule(static)
        for (Index p = 0; p < s.n * plan.blocks; ++p) {
            const float* weights = scratch + p % plan.blocks * (plan.taps + 1) * V;
            const float* from = with_margins(pass, source + p * pass.h * pass.w * V, copy);
            for (Index i = 0; i < pass.phase_count; ++i)
                convolve_phase(pass, pass.phases[i], from, weights, load(weights + plan.taps * V),
                               result + p * pass.result_h * pass.result_w * V);
        }
    }
}

/// A range of rows of dy, and the source pixels under its first tap.
struct GradientRows {
    const float *x, *dy;
    Index x_row, x_step;  // floats from one row, or column, of dy to the next
    Index rows, columns;
};

/// Adds the products with height x width taps to `sums`. tap_row, tap_column: floats from one tap of x to the next;
/// sums_row: floats from one row of sums to the next.
template <int height, int width>
static void accumulate_taps(const GradientRows& g, const float* x, Index tap_row, Index tap_column, float* sums,
                            Index sums_row) {
    Vec sum[height][width] = {};
    const float* dy = g.dy;
    for (Index row = 0; row < g.rows; ++row, x += g.x_row) {
        const float* from[height];
#pragma GCC unroll 4
        for (int i = 0; i < height; ++i) from[i] = x + i * tap_row;
        for (Index column = 0; column < g.columns; ++column, dy += V) {
            const Vec gradient = load(dy);
#pragma GCC unroll 4
            for (int i = 0; i < height; ++i) {
#pragma GCC unroll 8
                for (int j = 0; j < width; ++j) sum[i][j] += load(from[i] + j * tap_column) * gradient;
                from[i] += g.x_step;
            }
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < height; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < width; ++j) {
            float* to = sums + i * sums_row + j * V;
            store(to, load(to) + sum[i][j]);
        }
}

/// Most taps in one direction of accumulate_taps, and most in all: registers hold their sums.
constexpr Index most_taps = 5, most_sums = 10;

template <int width>
static Index accumulate_rows(Index height, const GradientRows& g, const float* x, Index tap_row, Index tap_column,
                             float* sums, Index sums_row) {
    if constexpr (3 * width <= most_sums)
        if (height >= 3) {
            accumulate_taps<3, width>(g, x, tap_row, tap_column, sums, sums_row);
            return 3;
        }
    if (height >= 2) {
        accumulate_taps<2, width>(g, x, tap_row, tap_column, sums, sums_row);
        return 2;
    }
    accumulate_taps<1, width>(g, x, tap_row, tap_column, sums, sums_row);
    return 1;
}

/// Adds the products with a filter of kh x kw to sums (kh, kw, V).
static void accumulate_filter(const DepthwiseSizes& s, const GradientRows& g, Index tap_row, Index tap_column,
                              float* sums) {
    for (Index j = 0; j < s.kw; j += most_taps)
        for (Index i = 0; i < s.kh;) {
            const float* x = g.x + i * tap_row + j * tap_column;
            float* to = sums + (i * s.kw + j) * V;
            const auto add = [&](auto rows) { i += rows(s.kh - i, g, x, tap_row, tap_column, to, s.kw * V); };
            switch (smaller(most_taps, s.kw - j)) {
                case 5: add(accumulate_rows<5>); break;
                case 4: add(accumulate_rows<4>); break;
                case 3: add(accumulate_rows<3>); break;
                case 2: add(accumulate_rows<2>); break;
                default: add(accumulate_rows<1>); break;
            }
        }
}

/// Adds the pixels of a plane to the bias's sums.
static void accumulate_pixels(Index pixels, const float* dy, float* sums) {
    // Four chains hide the latency of the addition.
    Vec sum[4] = {};
    Index pixel = 0;
    for (; pixel + 4 <= pixels; pixel += 4)
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) sum[i] += load(dy + (pixel + i) * V);
    for (; pixel < pixels; ++pixel) sum[0] += load(dy + pixel * V);
    store(sums, load(sums) + ((sum[0] + sum[1]) + (sum[2] + sum[3])));
}

static void accumulate_plane(const DepthwiseSizes& s, const DepthwisePass& pass, const float* x, const float* dy,
                             float* sums) {
    const Index tap_column = s.kw > 1 ? pass.taps[1].offset * V : 0;
    const Index tap_row = s.kh > 1 ? pass.taps[s.kw].offset * V : 0;
    const Index group = larger<Index>(1, summed_pixels / pass.result_w);
    for (Index row = 0; row < pass.result_h; row += group) {
        const Index x_row = pass.row_step * pass.columns * V;
        const GradientRows rows{x + row * x_row,      dy + row * pass.result_w * V,        x_row,
                                pass.column_step * V, smaller(group, pass.result_h - row), pass.result_w};
        accumulate_filter(s, rows, tap_row, tap_column, sums);
    }
    accumulate_pixels(pass.result_h * pass.result_w, dy, sums + s.kh * s.kw * V);
}

static void depthwise_backward_weights(const DepthwiseSizes& s, const DepthwisePass& pass, const float* x,
                                       const float* dy, float* dw, float* db, float* scratch, int threads) {
    const DepthwisePlan plan(s, pass);
    const Index filter = (plan.taps + 1) * V, dy_plane = pass.result_h * pass.result_w * V;
#pragma omp parallel num_threads(threads)
    {
        float* copy = scratch + plan.slices * plan.filters + omp_get_thread_num() * plan.plane;
#pragma omp for collapse(2) schedule(static)
        for (Index slice = 0; slice < plan.slices; ++slice)
            for (Index block = 0; block < plan.blocks; ++block) {
                float* sums = scratch + slice * plan.filters + block * filter;
                for (Index i = 0; i < filter; i += V) store(sums + i, Vec{});
                for (Index n = s.n * slice / plan.slices; n < s.n * (slice + 1) / plan.slices; ++n) {
                    const Index plane = n * plan.blocks + block;
                    const float* from = with_margins(pass, x + plane * pass.h * pass.w * V, copy);
                    accumulate_plane(s, pass, from, dy + plane * dy_plane, sums);
                }
            }
#pragma omp for schedule(static)
        for (Index channel = 0; channel < s.c; ++channel)
            for (Index tap = 0; tap <= plan.taps; ++tap) {
                const float* from = scratch + channel / V * filter + tap * V + channel % V;
                float sum = from[0];
                for (Index slice = 1; slice < plan.slices; ++slice) sum += from[slice * plan.filters];
                if (tap < plan.taps)
                    dw[channel * plan.taps + tap] = sum;
                else if (db != nullptr)
                    db[channel] = sum;
            }
    }
}

const DepthwiseKernels depthwise_kernels = {[](const DepthwiseSizes& sizes, const DepthwisePass& pass, int threads) {
                                                return DepthwisePlan(sizes, pass).scratch_floats(threads);
                                            },
                                            depthwise_convolve, depthwise_backward_weights};

}  // namespace lockstep::cpu::LOCKSTEP_SIMD_NAMESPACE
