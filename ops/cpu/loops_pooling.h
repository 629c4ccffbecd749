// Max pooling loops of loops.h, and helpers of all loops; see loops_kernels.h.
#pragma once

#include "lockstep/ops/cpu/loops.h"
#include "lockstep/ops/internal/arithmetic.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/round_up.h"

#ifndef LOCKSTEP_LOOPS
#error "included only by the sources that are compiled for one instruction set"
#endif

namespace lockstep::cpu::LOCKSTEP_LOOPS {

using Index = std::ptrdiff_t;

// Iterations are independent even if the runs are the same (y = a).
#define LOCKSTEP_FOR(i, n) _Pragma("GCC ivdep") for (Index i = 0; i < (n); ++i)

constexpr Index smaller(Index a, Index b) { return a < b ? a : b; }
constexpr Index larger(Index a, Index b) { return a < b ? b : a; }

/// V adjacent elements at any address. The compiler splits them into the available registers.
template <class T, int V>
struct Pack {
    typedef T Values __attribute__((vector_size(V * sizeof(T))));
    typedef std::uint8_t Bytes __attribute__((vector_size(V)));
};

/// A vector at any address.
template <class Values, class T>
inline __attribute__((always_inline)) Values read(const T* p) {
    Values v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}
template <class Values, class T>
inline __attribute__((always_inline)) void write(T* p, const Values& v) {
    __builtin_memcpy(p, &v, sizeof v);
}
template <class T, int V>
inline __attribute__((always_inline)) typename Pack<T, V>::Values pack(const T* p) {
    return read<typename Pack<T, V>::Values>(p);
}

/// `count` consecutive windows of KH x KW elements inside the plane; KH, KW 0: read from the geometry.
template <class T, int V, int KH, int KW>
inline __attribute__((always_inline)) void pool_inside(const PoolPlanes& g, const T* x, T* y, std::uint8_t* where,
                                                       Index count) {
    using Values = typename Pack<T, V>::Values;
    using Bytes = typename Pack<T, V>::Bytes;
    const Index kernel_h = KH != 0 ? KH : g.window.kernel_h, kernel_w = KW != 0 ? KW : g.window.kernel_w;
    const Index step = g.window.stride_w * g.pixel, row = g.w * g.pixel;
    for (Index o = 0; o < count; ++o, x += step, y += g.pixel, where += g.pixel) {
        Values best = pack<T, V>(x);
        decltype(best != best) position = {};  // integers as wide as T
        auto k = position;
        for (Index i = 0; i < kernel_h; ++i)
            for (Index j = 0; j < kernel_w; ++j, k += 1) {
                const Values value = pack<T, V>(x + i * row + j * g.pixel);
                const auto takes = (value > best) | (value != value);  // element::pool_takes
                best = takes ? value : best;
                position = takes ? k : position;
            }
        write(y, best);
        write(where, __builtin_convertvector(position, Bytes));
    }
}

/// One window that extends beyond the plane's border.
template <class T, int V>
void pool_border(const PoolPlanes& g, const T* x, Index top, Index left, T* y, std::uint8_t* where) {
    const Index i0 = larger(0, -top), i1 = smaller(g.window.kernel_h, g.h - top);
    const Index j0 = larger(0, -left), j1 = smaller(g.window.kernel_w, g.w - left);
    for (int v = 0; v < V; ++v) {
        T best = x[((top + i0) * g.w + left + j0) * g.pixel + v];
        Index position = i0 * g.window.kernel_w + j0;
        for (Index i = i0; i < i1; ++i)
            for (Index j = j0; j < j1; ++j) {
                const T value = x[((top + i) * g.w + left + j) * g.pixel + v];
                if (!element::pool_takes(value, best)) continue;
                best = value;
                position = i * g.window.kernel_w + j;
            }
        y[v] = best;
        where[v] = static_cast<std::uint8_t>(position);
    }
}

/// Rows of plain planes: 16 windows at a time. Elements of a row whose distance is a multiple of the stride are copied
/// next to each other, between margins of -infinity.
template <class T>
class PlainPool {
public:
    static constexpr Index width = 16, most_columns = 512, most_kernel = 16;

    static bool fits(const PoolPlanes& g) {
        return g.pixel == 1 && g.w <= most_columns && g.out_w <= most_columns && g.window.kernel_w <= most_kernel &&
               g.window.stride_w <= most_kernel;
    }

    explicit PlainPool(const PoolPlanes& planes)
        : g(planes),
          stride(planes.window.stride_w),
          length(margin + larger(ceil_div(g.w, stride), width * ceil_div(g.out_w, width)) + margin) {
        for (Index k = 0; k < stride * length; ++k) row[k] = -__builtin_inf();
        for (Index j = 0; j < g.window.kernel_w; ++j) {
            const Index distance = j - g.window.pad_w + margin * stride;  // from the margin's begin to the element
            begin[j] = distance % stride * length + distance / stride;
        }
        for (Index o = 0; o < width * ceil_div(g.out_w, width); ++o)
            first_column[o] = static_cast<IntegerLike>(larger(0, g.window.pad_w - o * stride));
    }

    void run(const T* x, T* y, std::uint8_t* where) {
        for (Index oh = 0; oh < g.out_h; ++oh, y += g.out_w, where += g.out_w) {
            const Index top = oh * g.window.stride_h - g.window.pad_h;
            const Index i0 = larger(0, -top), i1 = smaller(g.window.kernel_h, g.h - top);
            for (Index o = 0; o < g.out_w; o += width) {
                write(best + o, Values{} - static_cast<T>(__builtin_inf()));
                // Windows of -infinity choose their first element.
                write(position + o,
                      read<Integers>(first_column + o) + static_cast<IntegerLike>(i0 * g.window.kernel_w));
            }
            for (Index i = i0; i < i1; ++i) {
                split(x + (top + i) * g.w);
                for (Index o = 0; o < g.out_w; o += width) add_row(o, static_cast<IntegerLike>(i * g.window.kernel_w));
            }
            for (Index o = 0; o < g.out_w; ++o) {
                y[o] = best[o];
                where[o] = static_cast<std::uint8_t>(position[o]);
            }
        }
    }

private:
    using Values = typename Pack<T, width>::Values;
    using Integers = decltype(Values{} != Values{});  // as wide as T
    using IntegerLike = std::conditional_t<sizeof(T) == 8, std::int64_t, std::int32_t>;
    static constexpr Index margin = most_kernel + 1, most_windows = most_columns + width;

    void split(const T* x) {
        if (stride == 1) {
            LOCKSTEP_FOR(k, g.w) row[margin + k] = x[k];
        } else if (stride == 2) {
            T *const even = row + margin, *const odd = row + length + margin;
            LOCKSTEP_FOR(k, g.w / 2) {
                even[k] = x[2 * k];
                odd[k] = x[2 * k + 1];
            }
            if (g.w % 2 != 0) even[g.w / 2] = x[g.w - 1];
        } else {
            for (Index k = 0, phase = 0, at = margin; k < g.w; ++k) {
                row[phase * length + at] = x[k];
                if (++phase == stride) {
                    phase = 0;
                    ++at;
                }
            }
        }
    }

    void add_row(Index o, IntegerLike k) {
        Values most = read<Values>(best + o);
        Integers where = read<Integers>(position + o);
        for (Index j = 0; j < g.window.kernel_w; ++j, ++k) {
            const Values value = read<Values>(row + begin[j] + o);
            const auto takes = (value > most) | (value != value);  // element::pool_takes
            most = takes ? value : most;
            where = takes ? Integers{} + k : where;
        }
        write(best + o, most);
        write(position + o, where);
    }

    const PoolPlanes& g;
    const Index stride, length;
    Index begin[most_kernel];
    T row[most_columns + most_kernel * (2 * margin + width + 2)];
    T best[most_windows];
    IntegerLike position[most_windows], first_column[most_windows];
};

template <class T, int V>
void pool(const PoolPlanes& g, const T* x, T* y, std::uint8_t* where) {
    if constexpr (V == 1)
        if (PlainPool<T>::fits(g)) return PlainPool<T>(g).run(x, y, where);
    const PoolGeometry& window = g.window;
    // Columns [inside, end) of windows inside the plane.
    const Index inside = smaller(g.out_w, ceil_div(window.pad_w, window.stride_w));
    const Index last = g.w + window.pad_w - window.kernel_w;
    const Index end = last < 0 ? inside : larger(inside, smaller(g.out_w, last / window.stride_w + 1));
    for (Index oh = 0; oh < g.out_h; ++oh) {
        const Index top = oh * window.stride_h - window.pad_h;
        const bool cut = top < 0 || top + window.kernel_h > g.h;
        T* const row = y + oh * g.out_w * g.pixel;
        std::uint8_t* const row_where = where + oh * g.out_w * g.pixel;
        for (Index ow = 0; ow < g.out_w; ++ow) {
            const Index left = ow * window.stride_w - window.pad_w;
            if (!cut && ow == inside && end > inside) {
                const T* const from = x + (top * g.w + left) * g.pixel;
                if (window.kernel_h == 2 && window.kernel_w == 2) {
                    pool_inside<T, V, 2, 2>(g, from, row + ow * g.pixel, row_where + ow * g.pixel, end - inside);
                } else {
                    pool_inside<T, V, 0, 0>(g, from, row + ow * g.pixel, row_where + ow * g.pixel, end - inside);
                }
                ow = end - 1;
                continue;
            }
            pool_border<T, V>(g, x, top, left, row + ow * g.pixel, row_where + ow * g.pixel);
        }
    }
}

template <class T, int V>
void pool_backward(const PoolPlanes& g, const T* dy, const std::uint8_t* where, const T* y, T* dx) {
    using Values = typename Pack<T, V>::Values;
    using Bytes = typename Pack<T, V>::Bytes;
    using Integers = decltype(Values{} == Values{});
    const PoolGeometry& window = g.window;
    const bool apart = window.stride_h >= window.kernel_h && window.stride_w >= window.kernel_w;
    const bool tiles = apart && window.stride_h == window.kernel_h && window.stride_w == window.kernel_w &&
                       window.pad_h == 0 && window.pad_w == 0 && g.out_h * window.stride_h == g.h &&
                       g.out_w * window.stride_w == g.w;
    if (V == 1 || !tiles)
        for (Index i = 0; i < g.h * g.w; ++i) write(dx + i * g.pixel, Values{});
    const bool masked = y != nullptr;
    Index place[256];  // offsets of a window's elements
    for (Index k = 0; k < window.kernel_h * window.kernel_w; ++k)
        place[k] = (k / window.kernel_w * g.w + k % window.kernel_w) * g.pixel;
    for (Index oh = 0; oh < g.out_h; ++oh)
        for (Index ow = 0; ow < g.out_w; ++ow, dy += g.pixel, where += g.pixel, y += masked ? g.pixel : 0) {
            const Index top = oh * window.stride_h - window.pad_h, left = ow * window.stride_w - window.pad_w;
            if (V > 1 && apart) {  // no element is in two windows
                const Index i0 = larger(0, -top), i1 = smaller(window.kernel_h, g.h - top);
                const Index j0 = larger(0, -left), j1 = smaller(window.kernel_w, g.w - left);
                Values gradient = pack<T, V>(dy);
                if (masked) gradient = pack<T, V>(y) <= Values{} ? Values{} : gradient;  // Relu::gradient
                const Integers position = __builtin_convertvector(read<Bytes>(where), Integers);
                for (Index i = i0; i < i1; ++i) {
                    T* to = dx + ((top + i) * g.w + left + j0) * g.pixel;
                    Integers k = Integers{} + static_cast<int>(i * window.kernel_w + j0);
                    for (Index j = j0; j < j1; ++j, to += g.pixel, k += 1)
                        write(to, position == k ? gradient : Values{});
                }
            } else {
                for (int v = 0; v < V; ++v) {
                    const T gradient = masked ? functor::Relu().gradient(dy[v], y[v]) : dy[v];
                    T& sum = dx[(top * g.w + left) * g.pixel + place[where[v]] + v];
                    sum = apart ? gradient : sum + gradient;
                }
            }
        }
}

}  // namespace lockstep::cpu::LOCKSTEP_LOOPS
