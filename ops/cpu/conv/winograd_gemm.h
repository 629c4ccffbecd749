// The matrix products between Winograd's transforms: 36 of them, one per point. Included once per instruction set, see
// simd.h.
#pragma once

#include "lockstep/ops/cpu/simd.h"

namespace lockstep::cpu::LOCKSTEP_SIMD_NAMESPACE {

// Accumulators fill the register file: 6 x 2 of 16 registers, 14 x 2 of 32. The weight gradient's rows are channels,
// and their number must divide V.
constexpr int tile_rows = V == 8 ? 6 : 14;
constexpr int channel_rows = V == 8 ? 4 : 8;
// Number of tiles that the weight gradient accumulates in registers: their two operands fit the first-level cache.
constexpr Index gradient_depth = 48;

// Number of channels whose products are added one by one before their sum is added to the total: one sum over 512
// channels would have two and a half times the error. A smaller number would cost time.
constexpr Index channel_group = 64;

/// out[tile m][vector j] = sum over channels of u[channel][m] * filters[channel][j], added to out if `add`. u: (blocks,
/// tiles, V) with u_stride floats between blocks; filters: (channels, vectors, V); out: out_stride floats between
/// vectors.
template <int rows, int vectors>
static void multiply_group(bool add, const float* u, Index u_stride, Index blocks, const float* filters, float* out,
                           Index out_stride) {
    Vec sum[rows][vectors] = {};
    for (; blocks > 0; --blocks, u += u_stride) {
#pragma GCC unroll 4
        for (int lane = 0; lane < V; ++lane, filters += vectors * V) {
            Vec filter[vectors];
#pragma GCC unroll 2
            for (int j = 0; j < vectors; ++j) filter[j] = load(filters + j * V);
#pragma GCC unroll 16
            for (int m = 0; m < rows; ++m) {
                const Vec x = broadcast(u[m * V + lane]);
#pragma GCC unroll 2
                for (int j = 0; j < vectors; ++j) sum[m][j] += x * filter[j];
            }
        }
    }
#pragma GCC unroll 16
    for (int m = 0; m < rows; ++m)
#pragma GCC unroll 2
        for (int j = 0; j < vectors; ++j) {
            float* to = out + m * V + j * out_stride;
            store(to, add ? load(to) + sum[m][j] : sum[m][j]);
        }
}

/// The same over any number of channels.
template <int rows, int vectors>
static void multiply_tiles(bool add, const float* u, Index u_stride, Index blocks, const float* filters, float* out,
                           Index out_stride) {
    constexpr Index group = channel_group / V;
    for (Index first = 0; first < blocks; first += group)
        multiply_group<rows, vectors>(add || first > 0, u + first * u_stride, u_stride, smaller(group, blocks - first),
                                      filters + first * V * vectors * V, out, out_stride);
}

template <int rows, int vectors>
static void multiply_remaining_tiles(Index remaining, bool add, const float* u, Index u_stride, Index blocks,
                                     const float* filters, float* out, Index out_stride) {
    if constexpr (rows > 0) {
        if (remaining == rows)
            multiply_tiles<rows, vectors>(add, u, u_stride, blocks, filters, out, out_stride);
        else
            multiply_remaining_tiles<rows - 1, vectors>(remaining, add, u, u_stride, blocks, filters, out, out_stride);
    }
}

/// One point and one panel: out (vectors, capacity, V) = u (channels / V, capacity, V) times filters, `tiles` of them.
template <int vectors>
static void multiply_panel(bool add, const float* u, Index capacity, Index tiles, Index channels, const float* filters,
                           float* out) {
    const Index stride = capacity * V;
    Index t = 0;
    for (; t + tile_rows <= tiles; t += tile_rows)
        multiply_tiles<tile_rows, vectors>(add, u + t * V, stride, channels / V, filters, out + t * V, stride);
    if (t < tiles)
        multiply_remaining_tiles<tile_rows - 1, vectors>(tiles - t, add, u + t * V, stride, channels / V, filters,
                                                         out + t * V, stride);
}

/// sums[channel m][vector j] (+)= sum over tiles of u[tile][m] * d[j][tile]; u and d: (tiles, V), d_stride floats
/// between the vectors of d.
template <int vectors>
static void accumulate_gradients(bool first, const float* u, const float* d, Index d_stride, Index tiles, float* sums) {
    Vec sum[channel_rows][vectors] = {};
#pragma GCC unroll 4
    for (Index t = 0; t < tiles; ++t) {
        Vec gradient[vectors];
#pragma GCC unroll 2
        for (int j = 0; j < vectors; ++j) gradient[j] = load(d + t * V + j * d_stride);
#pragma GCC unroll 8
        for (int m = 0; m < channel_rows; ++m) {
            const Vec x = broadcast(u[t * V + m]);
#pragma GCC unroll 2
            for (int j = 0; j < vectors; ++j) sum[m][j] += x * gradient[j];
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < channel_rows; ++m)
#pragma GCC unroll 2
        for (int j = 0; j < vectors; ++j) {
            float* to = sums + (m * vectors + j) * V;
            store(to, first ? sum[m][j] : load(to) + sum[m][j]);
        }
}

}  // namespace lockstep::cpu::LOCKSTEP_SIMD_NAMESPACE
