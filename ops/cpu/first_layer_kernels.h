// Direct convolution of 1 to 4 input channels, 3x3 or 5x5. Included once per instruction set, see simd.h.
//
// Vectors run over output channels; an input sample is one float that all of them share. Few input channels make the
// input small, so it is copied with its padding once, and no loop has borders.
#pragma once

#include "lockstep/ops/cpu/first_layer_kernels_table.h"
#include "lockstep/ops/cpu/simd.h"

namespace lockstep::LOCKSTEP_SIMD_NAMESPACE {

/// Outputs of one row computed together: with two vectors each they fill the register file.
constexpr int row_outputs = V == 8 ? 6 : 14;
/// The weight gradient sums at most so many ranges of images, each on one thread, and adds them in order.
constexpr Index image_slices = 16;

/// Where things lie in scratch, in floats.
struct FirstLayerPlan {
    Index blocks;   // of V output channels, the last one padded with zeros
    Index taps;     // c * size * size
    Index slices;   // of images
    Index images;   // padded input (n, c, padded_h, padded_w); 0 floats when there is no padding
    Index filters;  // (blocks, taps + 1, V), the bias last; as sums once per slice

    explicit FirstLayerPlan(const FirstLayerShape& s)
        : blocks(ceil_div(s.k, V)),
          taps(s.c * s.size * s.size),
          slices(smaller(s.n, image_slices)),
          images(s.pad == 0 ? 0 : whole_lines(s.n * s.c * s.padded_h() * s.padded_w())),
          filters(whole_lines(blocks * (taps + 1) * V)) {}
    Index scratch_floats() const { return images + slices * filters; }
};

/// Called by all threads: x with its padding, at `copy` unless there is none.
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

/// `outputs` neighbours of one output row for `vectors` blocks of channels. x: first sample of the first window;
/// filters: (vectors, taps + 1, V) with filter_stride between blocks; y: y_stride between blocks.
template <int outputs, int vectors>
static void convolve_outputs(const FirstLayerShape& s, const float* x, const float* filters, Index filter_stride,
                             float* y, Index y_stride, bool past_cache) {
    Vec sum[outputs][vectors];
    const Index taps = s.c * s.size * s.size, plane = s.padded_h() * s.padded_w(), row = s.padded_w();
#pragma GCC unroll 16
    for (int m = 0; m < outputs; ++m)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; ++v) sum[m][v] = load(filters + v * filter_stride + taps * V);
    for (Index c = 0; c < s.c; ++c)
        for (Index i = 0; i < s.size; ++i)
            for (Index j = 0; j < s.size; ++j, filters += V) {
                const float* sample = x + c * plane + i * row + j;
                Vec filter[vectors];
#pragma GCC unroll 2
                for (int v = 0; v < vectors; ++v) filter[v] = load(filters + v * filter_stride);
#pragma GCC unroll 16
                for (int m = 0; m < outputs; ++m) {
                    const Vec value = broadcast(sample[m * s.stride]);
#pragma GCC unroll 2
                    for (int v = 0; v < vectors; ++v) sum[m][v] += value * filter[v];
                }
            }
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v)
#pragma GCC unroll 16
        for (int m = 0; m < outputs; ++m) {
            float* to = y + v * y_stride + m * V;
            if (past_cache)
                store_past_cache(to, sum[m][v]);
            else
                store(to, sum[m][v]);
        }
}

template <int outputs, int vectors>
static void convolve_remaining(Index remaining, const FirstLayerShape& s, const float* x, const float* filters,
                               Index filter_stride, float* y, Index y_stride, bool past_cache) {
    if constexpr (outputs > 0) {
        if (remaining == outputs)
            convolve_outputs<outputs, vectors>(s, x, filters, filter_stride, y, y_stride, past_cache);
        else
            convolve_remaining<outputs - 1, vectors>(remaining, s, x, filters, filter_stride, y, y_stride, past_cache);
    }
}

/// One image, `vectors` blocks of channels.
template <int vectors>
static void convolve_image(const FirstLayerShape& s, const float* x, const float* filters, Index filter_stride,
                           float* y, bool past_cache) {
    const Index width = s.out_w(), y_stride = s.out_h() * width * V;
    for (Index row = 0; row < s.out_h(); ++row) {
        const float* from = x + row * s.stride * s.padded_w();
        float* to = y + row * width * V;
        Index column = 0;
        for (; column + row_outputs <= width; column += row_outputs)
            convolve_outputs<row_outputs, vectors>(s, from + column * s.stride, filters, filter_stride, to + column * V,
                                                   y_stride, past_cache);
        if (column < width)
            convolve_remaining<row_outputs - 1, vectors>(width - column, s, from + column * s.stride, filters,
                                                         filter_stride, to + column * V, y_stride, past_cache);
    }
    if (past_cache) fence_past_cache();
}

static void first_layer_forward(const FirstLayerShape& s, const float* x, const float* w, const float* bias, float* y,
                                float* scratch, int threads) {
    const FirstLayerPlan plan(s);
    float* filters = scratch + plan.images;
    const Index filter_stride = (plan.taps + 1) * V, image = s.c * s.padded_h() * s.padded_w();
    const Index y_block = s.out_h() * s.out_w() * V, pairs = ceil_div(plan.blocks, 2);
    const bool past_cache = s.n * plan.blocks * y_block * static_cast<Index>(sizeof(float)) >= (4 << 20);
#pragma omp parallel num_threads(threads)
    {
        const float* padded = pad_images(s, x, scratch);
#pragma omp for schedule(static)
        for (Index k = 0; k < plan.blocks * V; ++k) {
            float* to = filters + k / V * filter_stride + k % V;
            for (Index tap = 0; tap < plan.taps; ++tap) to[tap * V] = k < s.k ? w[k * plan.taps + tap] : 0.0F;
            to[plan.taps * V] = k < s.k && bias != nullptr ? bias[k] : 0.0F;
        }
#pragma omp for collapse(2) schedule(static)
        for (Index n = 0; n < s.n; ++n)
            for (Index pair = 0; pair < pairs; ++pair) {
                const float* from = padded + n * image;
                const float* filter = filters + 2 * pair * filter_stride;
                float* to = y + (n * plan.blocks + 2 * pair) * y_block;
                if (2 * pair + 1 < plan.blocks)
                    convolve_image<2>(s, from, filter, filter_stride, to, past_cache);
                else
                    convolve_image<1>(s, from, filter, filter_stride, to, past_cache);
            }
    }
}

/// Adds one output row's products to sums (vectors, taps + 1, V): `rows` x `size` taps of one input channel.
template <int rows, int size, int vectors>
static void accumulate_row(const FirstLayerShape& s, const float* x, const float* dy, Index dy_stride, float* sums,
                           Index sums_stride) {
    Vec sum[vectors][rows * size] = {};
    const Index width = s.out_w(), row = s.padded_w();
    for (Index column = 0; column < width; ++column, dy += V, x += s.stride) {
        Vec gradient[vectors];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) gradient[v] = load(dy + v * dy_stride);
#pragma GCC unroll 8
        for (int i = 0; i < rows; ++i)
#pragma GCC unroll 8
            for (int j = 0; j < size; ++j) {
                const Vec value = broadcast(x[i * row + j]);
#pragma GCC unroll 4
                for (int v = 0; v < vectors; ++v) sum[v][i * size + j] += value * gradient[v];
            }
    }
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v)
#pragma GCC unroll 32
        for (int tap = 0; tap < rows * size; ++tap) {
            float* to = sums + v * sums_stride + tap * V;
            store(to, load(to) + sum[v][tap]);
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

/// `rows` rows of taps are summed at once: all of them where the registers allow, otherwise one.
template <int size, int vectors>
static void accumulate_image(const FirstLayerShape& s, const float* x, const float* dy, float* sums,
                             Index sums_stride) {
    constexpr int rows = V == 16 && size * size * vectors <= 25 ? size : 1;
    const Index plane = s.padded_h() * s.padded_w(), width = s.out_w(), dy_stride = s.out_h() * width * V;
    for (Index y = 0; y < s.out_h(); ++y) {
        const float* from = dy + y * width * V;
        for (Index c = 0; c < s.c; ++c)
            for (Index i = 0; i < size; i += rows)
                accumulate_row<rows, size, vectors>(s, x + c * plane + (y * s.stride + i) * s.padded_w(), from,
                                                    dy_stride, sums + (c * size + i) * size * V, sums_stride);
        accumulate_bias<vectors>(width, from, dy_stride, sums + s.c * size * size * V, sums_stride);
    }
}

/// Blocks of channels that share the broadcast samples.
constexpr Index gradient_vectors(Index size) { return V == 16 ? (size == 3 ? 2 : 1) : (size == 3 ? 4 : 2); }

static void accumulate_group(const FirstLayerShape& s, Index vectors, const float* x, const float* dy, float* sums,
                             Index stride) {
    if (s.size == 3) {
        if constexpr (gradient_vectors(3) > 2) {
            if (vectors == 4) return accumulate_image<3, 4>(s, x, dy, sums, stride);
            if (vectors == 3) return accumulate_image<3, 3>(s, x, dy, sums, stride);
        }
        if (vectors == 2) return accumulate_image<3, 2>(s, x, dy, sums, stride);
        return accumulate_image<3, 1>(s, x, dy, sums, stride);
    }
    if constexpr (gradient_vectors(5) > 1)
        if (vectors == 2) return accumulate_image<5, 2>(s, x, dy, sums, stride);
    accumulate_image<5, 1>(s, x, dy, sums, stride);
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
    [](const FirstLayerShape& shape) { return FirstLayerPlan(shape).scratch_floats(); }, first_layer_forward,
    first_layer_backward_weights};

}  // namespace lockstep::LOCKSTEP_SIMD_NAMESPACE
