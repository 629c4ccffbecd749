// The transforms of Winograd's F(4x4, 3x3) on vectors of V channels, and the walk over an image's tiles.
// Included once per instruction set, see simd.h.
//
// Convolution of a 6x6 window with a 3x3 filter, 4x4 outputs: Y = A^T [ (G g G^T) * (B^T d B) ] A (Lavin and Gray,
// "Fast Algorithms for Convolutional Neural Networks"). The polynomials are taken at 0, +-5/8, +-3/2 and infinity:
// the textbook's +-1, +-2 double the rounding error, and fractions of few bits keep the constants exact.
#pragma once

#include "lockstep/ops/cpu/simd.h"

namespace lockstep::cpu::LOCKSTEP_SIMD_NAMESPACE {

constexpr float point_p = 0.625F;
constexpr float point_q = 1.5F;
constexpr float p2 = point_p * point_p;
constexpr float q2 = point_q * point_q;
constexpr float p3 = point_p * p2;
constexpr float q3 = point_q * q2;
constexpr float norm_0 = 1 / (p2 * q2);
constexpr float norm_p = 1 / (2 * p2 * (p2 - q2));
constexpr float norm_q = 1 / (2 * q2 * (q2 - p2));

constexpr int points = 36;  // 6 x 6 products per tile and pair of channels

/// B^T: 6 samples of the input to 6 points.
struct InputTransform {
    static constexpr int from = 6, to = 6;
    LOCKSTEP_INLINE void apply(const Vec* x, Vec* y) {
        const Vec a = x[4] - q2 * x[2], b = point_p * (x[3] - q2 * x[1]);
        const Vec c = x[4] - p2 * x[2], d = point_q * (x[3] - p2 * x[1]);
        y[0] = p2 * q2 * x[0] + (x[4] - (p2 + q2) * x[2]);
        y[1] = a + b;
        y[2] = a - b;
        y[3] = c + d;
        y[4] = c - d;
        y[5] = p2 * q2 * x[1] + (x[5] - (p2 + q2) * x[3]);
    }
};

/// A^T: 6 points to 4 samples of the output.
struct OutputTransform {
    static constexpr int from = 6, to = 4;
    LOCKSTEP_INLINE void apply(const Vec* m, Vec* y) {
        const Vec a = m[1] + m[2], b = m[1] - m[2], c = m[3] + m[4], d = m[3] - m[4];
        y[0] = m[0] + a + c;
        y[1] = point_p * b + point_q * d;
        y[2] = p2 * a + q2 * c;
        y[3] = p3 * b + (q3 * d + m[5]);
    }
};

/// A: 4 samples of the output's gradient to 6 points.
struct GradientTransform {
    static constexpr int from = 4, to = 6;
    LOCKSTEP_INLINE void apply(const Vec* x, Vec* m) {
        const Vec a = x[0] + p2 * x[2], b = point_p * (x[1] + p2 * x[3]);
        const Vec c = x[0] + q2 * x[2], d = point_q * (x[1] + q2 * x[3]);
        m[0] = x[0];
        m[1] = a + b;
        m[2] = a - b;
        m[3] = c + d;
        m[4] = c - d;
        m[5] = x[3];
    }
};

/// G: 3 taps of a filter to 6 points.
struct FilterTransform {
    static constexpr int from = 3, to = 6;
    LOCKSTEP_INLINE void apply(const Vec* g, Vec* u) {
        const Vec a = norm_p * (g[0] + p2 * g[2]), b = (norm_p * point_p) * g[1];
        const Vec c = norm_q * (g[0] + q2 * g[2]), d = (norm_q * point_q) * g[1];
        u[0] = norm_0 * g[0];
        u[1] = a + b;
        u[2] = a - b;
        u[3] = c + d;
        u[4] = c - d;
        u[5] = g[2];
    }
};

/// G^T: 6 points to the gradient of 3 taps.
struct FilterGradientTransform {
    static constexpr int from = 6, to = 3;
    LOCKSTEP_INLINE void apply(const Vec* m, Vec* g) {
        const Vec a = norm_p * (m[1] + m[2]), b = (norm_p * point_p) * (m[1] - m[2]);
        const Vec c = norm_q * (m[3] + m[4]), d = (norm_q * point_q) * (m[3] - m[4]);
        g[0] = norm_0 * m[0] + a + c;
        g[1] = b + d;
        g[2] = p2 * a + (q2 * c + m[5]);
    }
};

/// T along columns, then along rows: get(i, j) reads T::from x T::from vectors, put(i, j, v) writes T::to x T::to.
template <class T, class Get, class Put>
LOCKSTEP_INLINE void transform_2d(Get get, Put put) {
    Vec half[T::to][T::from];
#pragma GCC unroll 6
    for (int j = 0; j < T::from; ++j) {
        Vec x[T::from], y[T::to];
#pragma GCC unroll 6
        for (int i = 0; i < T::from; ++i) x[i] = get(i, j);
        T::apply(x, y);
#pragma GCC unroll 6
        for (int i = 0; i < T::to; ++i) half[i][j] = y[i];
    }
#pragma GCC unroll 6
    for (int i = 0; i < T::to; ++i) {
        Vec y[T::to];
        T::apply(half[i], y);
#pragma GCC unroll 6
        for (int j = 0; j < T::to; ++j) put(i, j, y[j]);
    }
}

/// Activations (n, c / V, h, w, V): c a multiple of V.
struct Image {
    Index n, c, h, w;
    Index row() const { return w * V; }
    /// Offset of the vector (image, block, y, x); y and x may be outside the image, as for a window's corner.
    Index at(Index image, Index block, Index y, Index x) const {
        return ((image * (c / V) + block) * h + y) * row() + x * V;
    }
};

/// The 4x4 tiles of an output of n images of h x w; the last ones of a row or column may extend past the border.
struct Tiles {
    Index across, down, count;
    explicit Tiles(const Image& output)
        : across(ceil_div(output.w, 4)), down(ceil_div(output.h, 4)), count(output.n * down * across) {}
};

/// Position of a tile; tiles are counted along rows, then images.
struct TileCursor {
    const Tiles& tiles;
    Index image, y, x;
    TileCursor(const Tiles& all, Index tile)
        : tiles(all), image(tile / all.across / all.down), y(tile / all.across % all.down), x(tile % all.across) {}
    void next() {
        if (++x < tiles.across) return;
        x = 0;
        if (++y < tiles.down) return;
        y = 0;
        ++image;
    }
};

/// Transforms the windows of tiles [first, last) of one block of channels: T = InputTransform for 6x6 windows of an
/// input whose tile (y, x) begins at (4y - pad, 4x - pad), T = GradientTransform for the 4x4 tiles themselves. Writes
/// target[point * plane + (tile - first) * V + lane]. Returns the sum of all elements read, which for a gradient is the
/// bias gradient.
template <class T, class Stored>
static Vec transform_windows(const Stored* source, const Image& image, const Tiles& tiles, Index pad, Index block,
                             Index first, Index last, float* target, Index plane) {
    constexpr int size = T::from;
    constexpr Index line = 64 / sizeof(Stored);
    Vec sums[size] = {};
    TileCursor at(tiles, first);
    for (Index tile = first; tile < last; ++tile, at.next(), target += V) {
        const Index y0 = 4 * at.y - pad, x0 = 4 * at.x - pad;
        const Stored* corner = source + image.at(at.image, block, y0, x0);
        // The next tile's columns: a row of a small image ends before hardware has predicted it.
#pragma GCC unroll 6
        for (int i = 0; i < size; ++i)
#pragma GCC unroll 4
            for (Index ahead = 0; ahead < 4 * V; ahead += line)
                __builtin_prefetch(corner + i * image.row() + size * V + ahead, 0, 3);
        const auto put = [&](int i, int j, Vec v) LOCKSTEP_INLINE_LAMBDA { store(target + (i * 6 + j) * plane, v); };
        const auto sum = [&](int j, Vec v) LOCKSTEP_INLINE_LAMBDA {
            if constexpr (size == 4) sums[j] += v;
            return v;
        };
        if (y0 >= 0 && x0 >= 0 && y0 + size <= image.h && x0 + size <= image.w) {
            transform_2d<T>([&](int i, int j)
                                LOCKSTEP_INLINE_LAMBDA { return sum(j, load(corner + i * image.row() + j * V)); },
                            put);
        } else {
            Vec window[size][size];
            for (int i = 0; i < size; ++i)
                for (int j = 0; j < size; ++j) {
                    const bool inside = y0 + i >= 0 && y0 + i < image.h && x0 + j >= 0 && x0 + j < image.w;
                    window[i][j] = inside ? load(corner + i * image.row() + j * V) : Vec{};
                }
            transform_2d<T>([&](int i, int j) LOCKSTEP_INLINE_LAMBDA { return sum(j, window[i][j]); }, put);
        }
    }
    Vec total = sums[0];
    for (int j = 1; j < size; ++j) total += sums[j];
    return total;
}

/// Function applied to an output before it is written.
enum class After { nothing, relu, relu_backward };

/// The arithmetic of Relu; made + to: ReLU's outputs at the positions of v, read only if after == relu_backward.
template <After after, class Stored>
LOCKSTEP_INLINE Vec finished(Vec v, const Stored* made, Index to) {
    if constexpr (after == After::relu) return v < Vec{} ? Vec{} : v;
    if constexpr (after == After::relu_backward) return load(made + to) <= Vec{} ? Vec{} : v;
    return v;
}

/// Inverse: reads source[point * plane + (tile - first) * V + lane], adds bias to each output and writes the tiles.
/// made: same layout as target; read only if after == relu_backward.
template <bool past_cache, After after, class Stored>
static void write_tiles(Stored* target, const Image& image, const Tiles& tiles, Index block, Index first, Index last,
                        const float* source, Index plane, Vec bias, const Stored* made) {
    TileCursor at(tiles, first);
    for (Index tile = first; tile < last; ++tile, at.next(), source += V) {
        const Index y0 = 4 * at.y, x0 = 4 * at.x;
        const Index corner = image.at(at.image, block, y0, x0);
        const auto finish = [&](Index to, Vec v) LOCKSTEP_INLINE_LAMBDA { return finished<after>(v + bias, made, to); };
        const auto get = [&](int i, int j) LOCKSTEP_INLINE_LAMBDA { return load(source + (i * 6 + j) * plane); };
        if (y0 + 4 <= image.h && x0 + 4 <= image.w) {
            transform_2d<OutputTransform>(get, [&](int i, int j, Vec v) LOCKSTEP_INLINE_LAMBDA {
                const Index to = corner + i * image.row() + j * V;
                if constexpr (past_cache)
                    store_past_cache(target + to, finish(to, v));
                else
                    store(target + to, finish(to, v));
            });
        } else {
            Vec window[4][4];
            transform_2d<OutputTransform>(get, [&](int i, int j, Vec v) LOCKSTEP_INLINE_LAMBDA { window[i][j] = v; });
            for (int i = 0; i < 4 && y0 + i < image.h; ++i)
                for (int j = 0; j < 4 && x0 + j < image.w; ++j) {
                    const Index to = corner + i * image.row() + j * V;
                    store(target + to, finish(to, window[i][j]));
                }
        }
    }
    if constexpr (past_cache) fence_past_cache();
}

/// Converts V consecutive filters of 3 x 3 to 9 vectors, the last tap first.
template <class Stored>
LOCKSTEP_INLINE void turn_filters(const Stored* filters, float* taps) {
    constexpr int turned = smaller(V, 9);
    Vec row[V];
#pragma GCC unroll 16
    for (int lane = 0; lane < V; ++lane) row[lane] = load_unaligned(filters + smaller(lane * 9, 9 * V - V));
    if constexpr (V > 9) {  // the last filter ends before its vector does
        const Vec end = row[V - 1];
        [&]<int... lane>(std::integer_sequence<int, lane...>) LOCKSTEP_INLINE_LAMBDA {
            row[V - 1] = __builtin_shufflevector(end, end, ((lane + V - 9) % V)...);
        }
        (std::make_integer_sequence<int, V>());
    }
    transpose(row);
#pragma GCC unroll 9
    for (int tap = 0; tap < turned; ++tap) store(taps + (8 - tap) * V, row[tap]);
    if constexpr (turned < 9) {
        Vec last = {};
        for (int lane = 0; lane < V; ++lane) last[lane] = load_one(filters + lane * 9 + 8);
        store(taps, last);
    }
}

/// Transforms the filters between one block of V input channels and one panel of `vectors` (1 or 2) times V output
/// channels. w is plain (k, c, 3, 3). Backward data is a convolution of k input with c output channels and turned
/// filters. Writes target[point * plane + (i * vectors + vector) * V + lane], i counting the block's channels.
template <class Stored>
static void transform_filters(const Stored* w, Index k, Index c, bool backward, Index panel, Index in_block,
                              float* target, Index plane) {
    const int vectors = static_cast<int>(smaller<Index>(2, (backward ? c : k) / V - 2 * panel));
    constexpr Index line = 64 / sizeof(Stored);
    alignas(64) float taps[V * 9 * V];  // (input channel of the block, tap, output channel of the vector)
    for (int vector = 0; vector < vectors; ++vector) {
        const Index out = (2 * panel + vector) * V, in = in_block * V;
        if (backward) {
            for (Index i = 0; i < V; ++i) turn_filters(w + ((in + i) * c + out) * 9, taps + i * 9 * V);
        } else {
            // The 9 V floats of one output channel are (input channel, tap) already: 9 transpositions of V x V.
            for (Index part = 0; part < 9; ++part)
                transpose(w + (out * c + in) * 9 + part * V, c * 9, taps + part * V * V, V);
        }
        // The next inputs are at V distant addresses, which no hardware prefetcher predicts: prefetched here.
        const Stored* next = w + (backward ? (in + V) * c + out : out * c + in + V) * 9;
        for (Index i = 0; i < V; ++i) {
            for (Index ahead = 0; ahead < 9 * V; ahead += line) __builtin_prefetch(next + i * c * 9 + ahead, 0, 2);
            const float* filter = taps + i * 9 * V;
            float* to = target + (i * vectors + vector) * V;
            transform_2d<FilterTransform>(
                [&](int y, int x) LOCKSTEP_INLINE_LAMBDA { return load(filter + (y * 3 + x) * V); },
                [&](int y, int x, Vec v) LOCKSTEP_INLINE_LAMBDA { store(to + (y * 6 + x) * plane, v); });
        }
    }
}

/// Inverse for gradients: sums of products at source[point * plane + (i * vectors + vector) * V + lane], i counting
/// the V input channels of in_block, become dw (k, c, 3, 3).
template <class Stored>
static void write_filter_gradients(const float* source, Index plane, int vectors, Index panel, Index in_block, Index c,
                                   Stored* dw) {
    alignas(64) float taps[V * 9 * V];
    for (int vector = 0; vector < vectors; ++vector) {
        for (Index i = 0; i < V; ++i) {
            const float* from = source + (i * vectors + vector) * V;
            float* filter = taps + i * 9 * V;
            transform_2d<FilterGradientTransform>(
                [&](int y, int x) LOCKSTEP_INLINE_LAMBDA { return load(from + (y * 6 + x) * plane); },
                [&](int y, int x, Vec v) LOCKSTEP_INLINE_LAMBDA { store(filter + (y * 3 + x) * V, v); });
        }
        Stored* to = dw + ((2 * panel + vector) * V * c + in_block * V) * 9;
        for (Index part = 0; part < 9; ++part) transpose(taps + part * V * V, V, to + part * V, c * 9);
    }
}

}  // namespace lockstep::cpu::LOCKSTEP_SIMD_NAMESPACE
