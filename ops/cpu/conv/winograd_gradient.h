// Backward weights by Winograd F(4x4, 3x3), together with the gradient of the bias. Included once per instruction set,
// see simd.h.
//
// A sum over all tiles: the shape determines its order, so that bits do not depend on the number of threads.
#pragma once

#include <omp.h>

#include "lockstep/ops/cpu/conv/winograd_convolution.h"

namespace lockstep::cpu::LOCKSTEP_SIMD_NAMESPACE {

/// slices: few channels, many tiles: fixed ranges of tiles, each summed by one thread with all its data in cache;
///         the slices' gradients are added in order.
/// chunks: all threads transform a chunk of tiles, then each (point, panel) is accumulated by one thread, chunk after
///         chunk; the next chunk is transformed meanwhile.
/// panels: large filters, few tiles: one chunk, and sums exist for only V x 2V channels at a time.
enum class GradientOrder { slices, chunks, panels };

constexpr Index gradient_slices = 16;

struct GradientPlan {
    Image x, dy;
    Tiles tiles;
    Index pad;
    GradientOrder order;
    Index panels;                        // panels of 2V output channels
    Index capacity, chunks;              // tiles per chunk, chunks
    Index x_plane, dy_plane, sum_plane;  // floats per point
    Index filter_floats, bias_floats;

    explicit GradientPlan(const WinogradShape& s)
        : x{s.n, s.c, s.h, s.w},
          dy{s.n, s.k, s.out_h(), s.out_w()},
          tiles(dy),
          pad(s.pad),
          panels(ceil_div(s.k / V, 2)) {
        const Index transformed_filters = point_bytes * s.c * s.k;
        if (s.c * s.k <= 64 * 128 && tiles.count >= 32 * gradient_slices)
            order = GradientOrder::slices;
        else if (transformed_filters > (16 << 20) && point_bytes * (s.c + s.k) * tiles.count < (24 << 20))
            order = GradientOrder::panels;
        else
            order = GradientOrder::chunks;
        capacity = tiles.count;
        if (order != GradientOrder::panels)
            capacity = smaller<Index>(capacity, transformed_filters < (16 << 20) ? 32 : 256);
        chunks = ceil_div(tiles.count, capacity);
        x_plane = odd_lines(capacity * s.c);
        dy_plane = odd_lines(capacity * s.k);
        sum_plane = order == GradientOrder::panels ? odd_lines(2 * V * V) : odd_lines(s.c * s.k);
        filter_floats = 9 * s.c * s.k;
        bias_floats = round_up(s.k, cache_line_floats);
    }

    Index chunk_floats() const { return points * (x_plane + dy_plane); }
    Index sum_floats() const { return points * sum_plane; }
    Index scratch_floats(int threads) const {
        switch (order) {
            case GradientOrder::slices:
                return threads * (chunk_floats() + sum_floats()) + gradient_slices * (filter_floats + bias_floats);
            case GradientOrder::chunks: return 2 * chunk_floats() + sum_floats();
            case GradientOrder::panels: break;
        }
        return chunk_floats() + threads * sum_floats();
    }
    /// Blocks of channels of x and dy together.
    Index channel_blocks() const { return (x.c + dy.c) / V; }
    Index panel_vectors(Index panel) const { return smaller<Index>(2, dy.c / V - 2 * panel); }
};

/// Transforms tiles [first, last) of one block of channels, those of x counted before those of dy, into a chunk. Starts
/// or continues the bias's sums, unless null.
template <class Stored>
static void transform_chunk_block(const GradientPlan& plan, const Stored* x, const Stored* dy, Index block, Index first,
                                  Index last, float* chunk, bool begin_bias, float* bias_sums) {
    const Index x_blocks = plan.x.c / V;
    if (block < x_blocks) {
        transform_windows<InputTransform>(x, plan.x, plan.tiles, plan.pad, block, first, last,
                                          chunk + block * plan.capacity * V, plan.x_plane);
        return;
    }
    block -= x_blocks;
    const Vec sum =
        transform_windows<GradientTransform>(dy, plan.dy, plan.tiles, 0, block, first, last,
                                             chunk + points * plan.x_plane + block * plan.capacity * V, plan.dy_plane);
    if (bias_sums == nullptr) return;
    float* to = bias_sums + block * V;
    store_unaligned(to, begin_bias ? sum : load_unaligned(to) + sum);
}

/// Adds a chunk's products of one point and panel for input channels [c0, c1) to sums (c1 - c0, vectors, V).
static void accumulate_chunk(const GradientPlan& plan, const float* chunk, Index tiles, bool begin, Index point,
                             Index panel, Index c0, Index c1, float* sums) {
    const Index stride = plan.capacity * V, vectors = plan.panel_vectors(panel);
    const float* x = chunk + point * plan.x_plane;
    const float* dy = chunk + points * plan.x_plane + point * plan.dy_plane + panel * 2 * stride;
    for (Index t = 0; t < tiles; t += gradient_depth) {
        const Index depth = smaller(gradient_depth, tiles - t);
        float* to = sums;
        for (Index c = c0; c < c1; c += channel_rows, to += channel_rows * vectors * V) {
            const float* u = x + c / V * stride + t * V + c % V;
            if (vectors == 2)
                accumulate_gradients<2>(begin && t == 0, u, dy + t * V, stride, depth, to);
            else
                accumulate_gradients<1>(begin && t == 0, u, dy + t * V, stride, depth, to);
        }
    }
}

/// Writes the filters' gradients of one panel and one block of input channels from full sums (panel, c, vectors, V).
template <class Stored>
static void write_panel_gradients(const GradientPlan& plan, const float* sums, Index panel, Index block, Stored* dw) {
    const int vectors = static_cast<int>(plan.panel_vectors(panel));
    write_filter_gradients(sums + panel * 2 * V * plan.x.c + block * V * vectors * V, plan.sum_plane, vectors, panel,
                           block, plan.x.c, dw);
}

/// target = the parts of all slices, added in order; `floats` a multiple of V.
template <class Stored>
static void add_slices(const float* parts, Index stride, Index floats, Stored* target) {
#pragma omp for schedule(static)
    for (Index i = 0; i < floats; i += V) {
        Vec sum = load(parts + i);
        for (Index slice = 1; slice < gradient_slices; ++slice) sum += load(parts + slice * stride + i);
        store_unaligned(target + i, sum);
    }
}

template <class Stored>
static void gradient_by_slices(const GradientPlan& plan, const Stored* x, const Stored* dy, Stored* dw, float* db,
                               float* scratch, int threads) {
    const Index thread_floats = plan.chunk_floats() + plan.sum_floats();
    const Index part_floats = plan.filter_floats + plan.bias_floats;
    float* parts = scratch + threads * thread_floats;
#pragma omp parallel num_threads(threads)
    {
        float* chunk = scratch + omp_get_thread_num() * thread_floats;
        float* sums = chunk + plan.chunk_floats();
#pragma omp for schedule(static)
        for (Index slice = 0; slice < gradient_slices; ++slice) {
            const Index begin = plan.tiles.count * slice / gradient_slices;
            const Index end = plan.tiles.count * (slice + 1) / gradient_slices;
            float* part = parts + slice * part_floats;
            for (Index first = begin; first < end; first += plan.capacity) {
                const Index last = smaller(end, first + plan.capacity);
                for (Index block = 0; block < plan.channel_blocks(); ++block)
                    transform_chunk_block(plan, x, dy, block, first, last, chunk, first == begin,
                                          part + plan.filter_floats);
                for (Index point = 0; point < points; ++point)
                    for (Index panel = 0; panel < plan.panels; ++panel)
                        accumulate_chunk(plan, chunk, last - first, first == begin, point, panel, 0, plan.x.c,
                                         sums + point * plan.sum_plane + panel * 2 * V * plan.x.c);
            }
            for (Index panel = 0; panel < plan.panels; ++panel)
                for (Index block = 0; block < plan.x.c / V; ++block)
                    write_panel_gradients(plan, sums, panel, block, part);
        }
        add_slices(parts, part_floats, plan.filter_floats, dw);
        if (db != nullptr) add_slices(parts + plan.filter_floats, part_floats, plan.dy.c, db);
    }
}

/// Called by all threads: they share the blocks of channels and do not wait for each other.
template <class Stored>
static void transform_chunk(const GradientPlan& plan, const Stored* x, const Stored* dy, Index index, float* chunk,
                            float* db) {
    const Index first = index * plan.capacity, last = smaller(plan.tiles.count, first + plan.capacity);
#pragma omp for schedule(static) nowait
    for (Index block = 0; block < plan.channel_blocks(); ++block)
        transform_chunk_block(plan, x, dy, block, first, last, chunk, index == 0, db);
}

template <class Stored>
static void gradient_by_chunks(const GradientPlan& plan, const Stored* x, const Stored* dy, Stored* dw, float* db,
                               float* scratch, int threads) {
    float* chunk[2] = {scratch, scratch + plan.chunk_floats()};
    float* sums = scratch + 2 * plan.chunk_floats();
#pragma omp parallel num_threads(threads)
    {
        transform_chunk(plan, x, dy, 0, chunk[0], db);
#pragma omp barrier
        for (Index index = 0; index < plan.chunks; ++index) {
            const Index tiles = smaller(plan.capacity, plan.tiles.count - index * plan.capacity);
#pragma omp for collapse(2) schedule(static) nowait
            for (Index point = 0; point < points; ++point)
                for (Index panel = 0; panel < plan.panels; ++panel)
                    accumulate_chunk(plan, chunk[index % 2], tiles, index == 0, point, panel, 0, plan.x.c,
                                     sums + point * plan.sum_plane + panel * 2 * V * plan.x.c);
            if (index + 1 < plan.chunks) transform_chunk(plan, x, dy, index + 1, chunk[(index + 1) % 2], db);
#pragma omp barrier
        }
#pragma omp for collapse(2) schedule(static)
        for (Index panel = 0; panel < plan.panels; ++panel)
            for (Index block = 0; block < plan.x.c / V; ++block) write_panel_gradients(plan, sums, panel, block, dw);
    }
}

template <class Stored>
static void gradient_by_panels(const GradientPlan& plan, const Stored* x, const Stored* dy, Stored* dw, float* db,
                               float* scratch, int threads) {
#pragma omp parallel num_threads(threads)
    {
        float* sums = scratch + plan.chunk_floats() + omp_get_thread_num() * plan.sum_floats();
        transform_chunk(plan, x, dy, 0, scratch, db);
#pragma omp barrier
#pragma omp for collapse(2) schedule(static)
        for (Index panel = 0; panel < plan.panels; ++panel)
            for (Index block = 0; block < plan.x.c / V; ++block) {
                for (Index point = 0; point < points; ++point)
                    accumulate_chunk(plan, scratch, plan.tiles.count, true, point, panel, block * V, block * V + V,
                                     sums + point * plan.sum_plane);
                write_filter_gradients(sums, plan.sum_plane, static_cast<int>(plan.panel_vectors(panel)), panel, block,
                                       plan.x.c, dw);
            }
    }
}

template <class Stored>
static void weight_gradient(const WinogradShape& shape, const Stored* x, const Stored* dy, Stored* dw, float* db,
                            float* scratch, int threads) {
    const GradientPlan plan(shape);
    switch (plan.order) {
        case GradientOrder::slices: return gradient_by_slices(plan, x, dy, dw, db, scratch, threads);
        case GradientOrder::chunks: return gradient_by_chunks(plan, x, dy, dw, db, scratch, threads);
        case GradientOrder::panels: return gradient_by_panels(plan, x, dy, dw, db, scratch, threads);
    }
}

static Index winograd_scratch_floats(const WinogradShape& shape, int threads) {
    const Index convolutions = larger(convolution_scratch_floats(forward_convolution(shape), threads),
                                      convolution_scratch_floats(backward_convolution(shape), threads));
    return larger(convolutions, GradientPlan(shape).scratch_floats(threads));
}

template <class Stored>
static constexpr WinogradKernels make_winograd_kernels() {
    return {winograd_scratch_floats,
            [](const WinogradShape& shape, const void* x, const void* w, const float* bias, bool relu, void* y,
               float* scratch, int threads) {
                convolve<Stored>(forward_convolution(shape), static_cast<const Stored*>(x),
                                 static_cast<const Stored*>(w), bias, relu ? After::relu : After::nothing, nullptr,
                                 static_cast<Stored*>(y), scratch, threads);
            },
            [](const WinogradShape& shape, const void* dy, const void* w, const void* made, void* dx, float* scratch,
               int threads) {
                convolve<Stored>(backward_convolution(shape), static_cast<const Stored*>(dy),
                                 static_cast<const Stored*>(w), nullptr,
                                 made != nullptr ? After::relu_backward : After::nothing,
                                 static_cast<const Stored*>(made), static_cast<Stored*>(dx), scratch, threads);
            },
            [](const WinogradShape& shape, const void* x, const void* dy, void* dw, float* db, float* scratch,
               int threads) {
                weight_gradient(shape, static_cast<const Stored*>(x), static_cast<const Stored*>(dy),
                                static_cast<Stored*>(dw), db, scratch, threads);
            }};
}

constinit const WinogradKernels winograd_kernels = make_winograd_kernels<float>();
constinit const WinogradKernels winograd_kernels_bf16 = make_winograd_kernels<BFloat16>();

}  // namespace lockstep::cpu::LOCKSTEP_SIMD_NAMESPACE
