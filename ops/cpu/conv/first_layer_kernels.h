// Weight gradient of a convolution of 1 to 4 input channels, 3x3 or 5x5, on AVX2; see simd.h.
//
// Vectors extend over output channels; an input sample is one float that all of them share. With few input channels the
// input is small, so it is copied once with its padding, and no loop has to handle borders.
#pragma once

#include "lockstep/ops/cpu/conv/first_layer_kernels_table.h"
#include "lockstep/ops/cpu/simd.h"

namespace lockstep::cpu::LOCKSTEP_SIMD_NAMESPACE {

/// Maximum number of ranges of images that the weight gradient sums, each on one thread; their sums are added in order.
constexpr Index image_slices = 16;

/// Layout of scratch, in floats.
struct FirstLayerPlan {
    Index blocks;   // blocks of V output channels, the last one padded with zeros
    Index taps;     // c * size * size
    Index slices;   // ranges of images
    Index images;   // padded input (n, c, padded_h, padded_w); 0 floats when there is no padding
    Index filters;  // (blocks, taps + 1, V), the bias last; each slice has its sums in this form

    explicit FirstLayerPlan(const FirstLayerShape& s)
        : blocks(ceil_div(s.k, V)),
          taps(s.c * s.size * s.size),
          slices(smaller(s.n, image_slices)),
          images(s.pad == 0 ? 0 : round_up(s.n * s.c * s.padded_h() * s.padded_w(), cache_line_floats)),
          filters(round_up(blocks * (taps + 1) * V, cache_line_floats)) {}
    Index scratch_floats() const { return images + slices * filters; }
};

/// Called by all threads: x with its padding, at `copy` unless there is no padding.
static const float* pad_images(const FirstLayerShape& s, const float* x, float* copy) {
    if (s.pad == 0) return x;
    const Index width = s.padded_w();
#pragma omp for schedule(static)
    for (Index plane = 0; plane < s.n * s.c; ++plane)
        for (Index row = 0; row < s.padded_h(); ++row) {
            float* to = copy + (plane * s.padded_h() + row) * width;
            const Index from_row = row - s.pad;
            const float* from = x + (plane * s.h + from_row) * s.w;
            for (Index column = 0; column < width; ++column) {
                const Index from_column = column - s.pad;
                const bool inside = from_row >= 0 && from_row < s.h && from_column >= 0 && from_column < s.w;
                to[column] = inside ? from[from_column] : 0.0F;
            }
        }
    return copy;
}

/// Adds one output row's products with one row of taps to sums (vectors, taps + 1, V). x: the samples under the first
/// output; dy: dy_stride floats between blocks of channels.
template <int size, int vectors>
static void accumulate_row(const FirstLayerShape& s, const float* x, const float* dy, Index dy_stride, float* sums,
                           Index sums_stride) {
    Vec sum[vectors][size] = {};
    const Index width = s.out_w();
    for (Index column = 0; column < width; ++column, dy += V, x += s.stride) {
        Vec gradient[vectors];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) gradient[v] = load(dy + v * dy_stride);
#pragma GCC unroll 8
        for (int j = 0; j < size; ++j) {
            const Vec value = broadcast(x[j]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) sum[v][j] += value * gradient[v];
        }
    }
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v)
#pragma GCC unroll 8
        for (int j = 0; j < size; ++j) {
            float* to = sums + v * sums_stride + j * V;
            store(to, load(to) + sum[v][j]);
        }
}

/// Adds one output row to the bias's sums, which follow the taps.
template <int vectors>
static void accumulate_bias(Index width, const float* dy, Index dy_stride, float* sums, Index sums_stride) {
    for (int v = 0; v < vectors; ++v) {
        // Two chains hide the latency of the addition.
        Vec even = {}, odd = {};
        const float* from = dy + v * dy_stride;
        Index column = 0;
        for (; column + 2 <= width; column += 2) {
            even += load(from + column * V);
            odd += load(from + (column + 1) * V);
        }
        if (column < width) even += load(from + column * V);
        store(sums + v * sums_stride, load(sums + v * sums_stride) + (even + odd));
    }
}

/// One image. Each row's products are summed separately first, which reduces rounding errors.
template <int size, int vectors>
static void accumulate_image(const FirstLayerShape& s, const float* x, const float* dy, float* sums,
                             Index sums_stride) {
    const Index plane = s.padded_h() * s.padded_w(), width = s.out_w(), dy_stride = s.out_h() * width * V;
    for (Index y = 0; y < s.out_h(); ++y) {
        const float* from = dy + y * width * V;
        for (Index c = 0; c < s.c; ++c)
            for (Index i = 0; i < size; ++i)
                accumulate_row<size, vectors>(s, x + c * plane + (y * s.stride + i) * s.padded_w(), from, dy_stride,
                                              sums + (c * size + i) * size * V, sums_stride);
        accumulate_bias<vectors>(width, from, dy_stride, sums + s.c * size * size * V, sums_stride);
    }
}

/// Blocks of channels that share the broadcast samples: 12 or 10 sums in 16 registers.
constexpr Index gradient_vectors(Index size) { return size == 3 ? 4 : 2; }

static void accumulate_group(const FirstLayerShape& s, Index vectors, const float* x, const float* dy, float* sums,
                             Index stride) {
    if (s.size == 5)
        return vectors == 2 ? accumulate_image<5, 2>(s, x, dy, sums, stride)
                            : accumulate_image<5, 1>(s, x, dy, sums, stride);
    switch (vectors) {
        case 4: return accumulate_image<3, 4>(s, x, dy, sums, stride);
        case 3: return accumulate_image<3, 3>(s, x, dy, sums, stride);
        case 2: return accumulate_image<3, 2>(s, x, dy, sums, stride);
        default: return accumulate_image<3, 1>(s, x, dy, sums, stride);
    }
}

static void first_layer_backward_weights(const FirstLayerShape& s, const float* x, const float* dy, float* dw,
                                         float* db, float* scratch, int threads) {
    const FirstLayerPlan plan(s);
    float* sums = scratch + plan.images;
    const Index filter_stride = (plan.taps + 1) * V, image = s.c * s.padded_h() * s.padded_w();
    const Index y_block = s.out_h() * s.out_w() * V, width = gradient_vectors(s.size);
    const Index groups = ceil_div(plan.blocks, width);
#pragma omp parallel num_threads(threads)
    {
        const float* padded = pad_images(s, x, scratch);
#pragma omp for collapse(2) schedule(static)
        for (Index slice = 0; slice < plan.slices; ++slice)
            for (Index group = 0; group < groups; ++group) {
                const Index vectors = smaller(width, plan.blocks - group * width);
                float* to = sums + slice * plan.filters + group * width * filter_stride;
                for (Index i = 0; i < vectors * filter_stride; i += V) store(to + i, Vec{});
                for (Index n = s.n * slice / plan.slices; n < s.n * (slice + 1) / plan.slices; ++n)
                    accumulate_group(s, vectors, padded + n * image, dy + (n * plan.blocks + group * width) * y_block,
                                     to, filter_stride);
            }
#pragma omp for schedule(static)
        for (Index k = 0; k < s.k; ++k)
            for (Index tap = 0; tap <= plan.taps; ++tap) {
                const float* from = sums + k / V * filter_stride + tap * V + k % V;
                float sum = from[0];
                for (Index slice = 1; slice < plan.slices; ++slice) sum += from[slice * plan.filters];
                if (tap < plan.taps)
                    dw[k * plan.taps + tap] = sum;
                else if (db != nullptr)
                    db[k] = sum;
            }
    }
}

const FirstLayerKernels first_layer_kernels = {
    [](const FirstLayerShape& shape) { return FirstLayerPlan(shape).scratch_floats(); }, first_layer_backward_weights};

}  // namespace lockstep::cpu::LOCKSTEP_SIMD_NAMESPACE
