// Max pooling with recorded positions. Backward gathers, or writes each window's part of the image, so that every
// gradient is summed in one order.
#include <bit>

#include "lockstep/ops/cuda/image_index.h"
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/layout.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/cuda/unroll.h"
#include "lockstep/ops/internal/arithmetic.h"
#include "lockstep/ops/internal/half_images.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/ops/internal/unary_functions.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep::cuda {

namespace {

using Positions = std::uint8_t;

/// The largest elements so far of `width` windows.
template <class Stored, int width>
struct Best {
    Pack<Stored, width> value{};
    UpcastType<Stored> wide[width] = {};
    Pack<Positions, width> position{};

    LOCKSTEP_HD_INLINE void take(int i, Stored candidate, int at, bool first) {
        const auto x = upcast(candidate);
        if (!first && !element::pool_takes(x, wide[i])) return;
        value.of[i] = candidate;
        wide[i] = x;
        position.of[i] = static_cast<Positions>(at);
    }
};

template <class Stored, int width>
struct Pool {
    PixelWalk walk;  // over y
    PoolGeometry g;
    std::int64_t h, w, out_slice;  // sizes of x; elements of a slice of y
    const Stored* x;
    Stored* y;
    Positions* where;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t thread) const {
        const auto at = walk.place(thread);
        const std::int64_t top = at.h * g.stride_h - g.pad_h, left = at.w * g.stride_w - g.pad_w;
        const int first_row = top < 0 ? static_cast<int>(-top) : 0,
                  first_column = left < 0 ? static_cast<int>(-left) : 0;
        const int rows = h - top < g.kernel_h ? static_cast<int>(h - top) : g.kernel_h;
        const int columns = w - left < g.kernel_w ? static_cast<int>(w - left) : g.kernel_w;
        const std::int64_t in_slice = h * w * walk.pixel;
        const std::int64_t from = (top * w + left) * walk.pixel + at.channel;
        const std::int64_t to = (at.h * walk.w + at.w) * walk.pixel + at.channel;
        for (std::int64_t slice = at.slice; slice < walk.slices; slice += walk.slices_ahead) {
            Best<Stored, width> best;
            for (int kh = first_row; kh < rows; ++kh)
                for (int kw = first_column; kw < columns; ++kw) {
                    const auto values = load_pack<width>(x + slice * in_slice + from + (kh * w + kw) * walk.pixel);
                    const bool first = kh == first_row && kw == first_column;
                    for (int i = 0; i < width; ++i) best.take(i, values.of[i], kh * g.kernel_w + kw, first);
                }
            store_pack(y + slice * out_slice + to, best.value);
            store_pack(where + slice * out_slice + to, best.position);
        }
    }
};

/// Windows of 2 x 2 that do not overlap, in planes of even width: one access reads both columns.
template <class Stored>
struct PoolSquares {
    PixelWalk walk;  // over y
    std::int64_t h, w, out_slice;
    const Stored* x;
    Stored* y;
    Positions* where;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t thread) const {
        const auto at = walk.place(thread);
        const std::int64_t from = at.h * 2 * w + at.w * 2, to = at.h * walk.w + at.w;
        for (std::int64_t slice = at.slice; slice < walk.slices; slice += walk.slices_ahead) {
            const Stored* const corner = x + slice * h * w + from;
            const auto upper = load_pack<2>(corner), lower = load_pack<2>(corner + w);
            Best<Stored, 1> best;
            best.take(0, upper.of[0], 0, true);
            best.take(0, upper.of[1], 1, false);
            best.take(0, lower.of[0], 2, false);
            best.take(0, lower.of[1], 3, false);
            y[slice * out_slice + to] = best.value.of[0];
            where[slice * out_slice + to] = best.position.of[0];
        }
    }
};

/// dy after the activation, if there is one (y is not null).
template <int width, class Stored>
LOCKSTEP_HD_INLINE Pack<Stored, width> gradient_at(const Stored* dy, const Stored* y, std::int64_t at) {
    auto gradient = load_pack<width>(dy + at);
    if (y == nullptr) return gradient;
    const auto result = load_pack<width>(y + at);
    for (int i = 0; i < width; ++i)
        gradient.of[i] = CastTo<Stored>::from(functor::Relu().gradient(upcast(gradient.of[i]), upcast(result.of[i])));
    return gradient;
}

/// The windows that contain a row (or column).
struct Windows {
    int kernel, stride, padding, shift;  // shift: log2(stride), or -1 if that is not an integer
    std::int64_t count;

    Windows(int size, int step, int before, std::int64_t windows)
        : kernel(size), stride(step), padding(before), shift(-1), count(windows) {
        if (const auto number = static_cast<unsigned>(step); std::has_single_bit(number))
            shift = std::countr_zero(number);
    }
    LOCKSTEP_HD_INLINE std::int64_t quotient(std::int64_t a) const {
        return shift >= 0 ? a >> shift : quick_quotient(a, stride);
    }
    LOCKSTEP_HD_INLINE std::int64_t first(std::int64_t row) const {
        const std::int64_t start = row + padding - kernel + 1;
        return start <= 0 ? 0 : quotient(start + stride - 1);
    }
    LOCKSTEP_HD_INLINE std::int64_t end(std::int64_t row) const {
        const std::int64_t after = quotient(row + padding) + 1;
        return after < count ? after : count;
    }
    /// Position of a row in its first window; it decreases by `stride` from window to window.
    LOCKSTEP_HD_INLINE int position(std::int64_t row, std::int64_t window) const {
        return static_cast<int>(row + padding - window * stride);
    }
};

template <class Stored, int width>
struct Unpool {
    PixelWalk walk;  // over dx
    Windows rows, columns;
    std::int64_t in_slice;  // elements of a slice of dx
    const Stored* dy;
    const Positions* where;
    const Stored* y;  // null without an activation
    Stored* dx;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t thread) const {
        const auto at = walk.place(thread);
        const std::int64_t first_row = rows.first(at.h), end_row = rows.end(at.h);
        const std::int64_t first_column = columns.first(at.w), end_column = columns.end(at.w);
        const int top = rows.position(at.h, first_row), left = columns.position(at.w, first_column);
        const std::int64_t out_slice = rows.count * columns.count * walk.pixel;
        const std::int64_t to = (at.h * walk.w + at.w) * walk.pixel + at.channel;
        for (std::int64_t slice = at.slice; slice < walk.slices; slice += walk.slices_ahead) {
            UpcastType<Stored> sum[width] = {};
            int down = top;
            for (std::int64_t row = first_row; row < end_row; ++row, down -= rows.stride) {
                int position = down * columns.kernel + left;
                std::int64_t from = slice * out_slice + (row * columns.count + first_column) * walk.pixel + at.channel;
                for (std::int64_t column = first_column; column < end_column;
                     ++column, position -= columns.stride, from += walk.pixel) {
                    const auto winner = load_pack<width>(where + from);
                    if constexpr (width == 1)
                        if (winner.of[0] != position) continue;
                    const auto gradient = gradient_at<width>(dy, y, from);
                    for (int i = 0; i < width; ++i)
                        if (winner.of[i] == position) sum[i] += upcast(gradient.of[i]);
                }
            }
            Pack<Stored, width> out;
            for (int i = 0; i < width; ++i) out.of[i] = CastTo<Stored>::from(sum[i]);
            store_pack(dx + slice * in_slice + to, out);
        }
    }
};

/// Unpool for windows of which at most two contain a row, and at most two a column: their positions are in registers.
template <class Stored, int width>
struct UnpoolPairs {
    PixelWalk walk;  // over dx
    Windows rows, columns;
    std::int64_t in_slice;  // elements of a slice of dx
    const Stored* dy;
    const Positions* where;
    const Stored* y;  // null without an activation
    Stored* dx;

    static bool fits(const Windows& windows) { return ceil_div(windows.kernel, windows.stride) <= 2; }

    LOCKSTEP_HD_INLINE void operator()(std::int64_t thread) const {
        constexpr int most = 4;
        const auto at = walk.place(thread);
        const std::int64_t first_row = rows.first(at.h), end_row = rows.end(at.h);
        const std::int64_t first_column = columns.first(at.w), end_column = columns.end(at.w);
        int positions[most];  // -1: no such window
        std::int64_t from[most];
        LOCKSTEP_UNROLL
        for (int i = 0; i < most; ++i) {
            const std::int64_t row = first_row + i / 2, column = first_column + i % 2;
            const bool exists = row < end_row && column < end_column;
            positions[i] = exists ? rows.position(at.h, row) * columns.kernel + columns.position(at.w, column) : -1;
            from[i] = exists ? (row * columns.count + column) * walk.pixel + at.channel : at.channel;
        }
        const std::int64_t out_slice = rows.count * columns.count * walk.pixel;
        const std::int64_t to = (at.h * walk.w + at.w) * walk.pixel + at.channel;
        for (std::int64_t slice = at.slice; slice < walk.slices; slice += walk.slices_ahead) {
            UpcastType<Stored> sum[width] = {};
            LOCKSTEP_UNROLL
            for (int i = 0; i < most; ++i) {
                if (positions[i] < 0) continue;
                const auto winner = load_pack<width>(where + slice * out_slice + from[i]);
                if constexpr (width == 1)
                    if (winner.of[0] != positions[i]) continue;
                const auto gradient = gradient_at<width>(dy, y, slice * out_slice + from[i]);
                for (int j = 0; j < width; ++j)
                    if (winner.of[j] == positions[i]) sum[j] += upcast(gradient.of[j]);
            }
            Pack<Stored, width> out;
            for (int i = 0; i < width; ++i) out.of[i] = CastTo<Stored>::from(sum[i]);
            store_pack(dx + slice * in_slice + to, out);
        }
    }
};

/// Windows that neither overlap nor begin in the padding, if channels are last: a thread writes all pixels of a window,
/// or those that are in no window.
template <class Stored, int width>
struct UnpoolTiles {
    PixelWalk walk;  // over windows, with those at the lower and right edge that are not complete
    PoolGeometry g;
    std::int64_t h, w, out_h, out_w;
    const Stored* dy;
    const Positions* where;
    const Stored* y;
    Stored* dx;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t thread) const {
        const auto at = walk.place(thread);
        const std::int64_t top = at.h * g.stride_h, left = at.w * g.stride_w;
        const int rows = h - top < g.stride_h ? static_cast<int>(h - top) : g.stride_h;
        const int columns = w - left < g.stride_w ? static_cast<int>(w - left) : g.stride_w;
        const bool complete = at.h < out_h && at.w < out_w;
        const std::int64_t from = (at.h * out_w + at.w) * walk.pixel + at.channel;
        const std::int64_t to = (top * w + left) * walk.pixel + at.channel;
        for (std::int64_t slice = at.slice; slice < walk.slices; slice += walk.slices_ahead) {
            Pack<Stored, width> gradient{};
            Pack<Positions, width> winner{};
            if (complete) {
                const std::int64_t here = slice * out_h * out_w * walk.pixel + from;
                gradient = gradient_at<width>(dy, y, here);
                winner = load_pack<width>(where + here);
            }
            for (int kh = 0; kh < rows; ++kh)
                for (int kw = 0; kw < columns; ++kw) {
                    Pack<Stored, width> out{};
                    for (int i = 0; i < width; ++i)
                        if (winner.of[i] == kh * g.kernel_w + kw) out.of[i] = gradient.of[i];
                    store_pack(dx + slice * h * w * walk.pixel + to + (kh * w + kw) * walk.pixel, out);
                }
        }
    }
};

/// Windows of 2 x 2 that do not overlap, in planes of even width.
template <class Stored>
struct UnpoolSquares {
    PixelWalk walk;  // over windows, with those at the lower edge that are not complete
    std::int64_t h, w, out_h;
    const Stored* dy;
    const Positions* where;
    const Stored* y;
    Stored* dx;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t thread) const {
        const auto at = walk.place(thread);
        const bool complete = at.h < out_h;
        const std::int64_t from = at.h * walk.w + at.w, to = at.h * 2 * w + at.w * 2;
        for (std::int64_t slice = at.slice; slice < walk.slices; slice += walk.slices_ahead) {
            Stored gradient{};
            int winner = 0;
            if (complete) {
                const std::int64_t here = slice * out_h * walk.w + from;
                gradient = gradient_at<1>(dy, y, here).of[0];
                winner = where[here];
            }
            Stored* const corner = dx + slice * h * w + to;
            store_pack(corner, row_of(gradient, winner));
            if (complete) store_pack(corner + w, row_of(gradient, winner - 2));
        }
    }
    static LOCKSTEP_HD_INLINE Pack<Stored, 2> row_of(Stored gradient, int winner) {
        Pack<Stored, 2> row{};
        if (winner == 0) row.of[0] = gradient;
        if (winner == 1) row.of[1] = gradient;
        return row;
    }
};

/// Whether windows of the images `x` are PoolSquares.
bool are_squares(const PoolGeometry& g, const Images& x) {
    return !x.channels_last && x.w % 2 == 0 && g.kernel_h == 2 && g.kernel_w == 2 && g.stride_h == 2 &&
           g.stride_w == 2 && g.pad_h == 0 && g.pad_w == 0;
}

/// Whether windows are UnpoolTiles.
bool are_tiles(const PoolGeometry& g, const Images& x) {
    return x.channels_last && g.kernel_h == g.stride_h && g.kernel_w == g.stride_w && g.pad_h == 0 && g.pad_w == 0;
}

KernelPtr make_max_pool2d_forward(const MaxPool2dForward& op, KernelRequest& request) {
    const Images x = want_images(request, 0);
    for (TensorMeta& out : request.out) {
        if (x.channels_last)
            set_channels_last(out);
        else
            out.strides = out.shape.contiguous_strides();
    }
    Images y = images_of(request.out[0]);
    y.channels_last = x.channels_last;
    return visit_any_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [x, y, g = op.geometry](const Queue& queue, const KernelArgs& v) {
            const T* from = v.input<T>(0);
            T* const to = v.output<T>(0);
            auto* const where = v.output<Positions>(1);
            const std::int64_t out_slice = y.h * y.w * (y.channels_last ? y.c : 1);
            if (are_squares(g, x) && are_aligned<2>(from)) {
                const PixelWalk walk(y, y.h, y.w, 1);
                launch(queue, "max_pool2d_forward", walk.threads(),
                       PoolSquares<T>{walk, x.h, x.w, out_slice, from, to, where});
                return;
            }
            with_channel_packs<T>(x, are_aligned<widest<T>>(from, to, where), [&](auto width) {
                const PixelWalk walk(y, y.h, y.w, width);
                launch(queue, "max_pool2d_forward", walk.threads(),
                       Pool<T, width>{walk, g, x.h, x.w, out_slice, from, to, where});
            });
        });
    });
}

template <class T>
void enqueue_max_pool2d_backward(const Queue& queue, const PoolGeometry& g, const Images& x, const Images& out,
                                 const T* dy, const Positions* where, const T* y, T* dx) {
    const char* const name = "max_pool2d_backward";
    if (are_squares(g, x) && are_aligned<2>(dx)) {
        const PixelWalk walk(x, ceil_div(x.h, 2), x.w / 2, 1);
        launch(queue, name, walk.threads(), UnpoolSquares<T>{walk, x.h, x.w, out.h, dy, where, y, dx});
        return;
    }
    with_channel_packs<T>(x, are_aligned<widest<T>>(dy, where, y, dx), [&](auto width) {
        if (are_tiles(g, x)) {
            const PixelWalk walk(x, ceil_div(x.h, g.stride_h), ceil_div(x.w, g.stride_w), width);
            launch(queue, name, walk.threads(),
                   UnpoolTiles<T, width>{walk, g, x.h, x.w, out.h, out.w, dy, where, y, dx});
        } else {
            const PixelWalk walk(x, x.h, x.w, width);
            const Windows rows(g.kernel_h, g.stride_h, g.pad_h, out.h), columns(g.kernel_w, g.stride_w, g.pad_w, out.w);
            const std::int64_t in_slice = x.h * x.w * walk.pixel;
            using Pairs = UnpoolPairs<T, width>;
            if (Pairs::fits(rows) && Pairs::fits(columns))
                launch(queue, name, walk.threads(), Pairs{walk, rows, columns, in_slice, dy, where, y, dx});
            else
                launch(queue, name, walk.threads(), Unpool<T, width>{walk, rows, columns, in_slice, dy, where, y, dx});
        }
    });
}

KernelPtr make_max_pool2d_backward(const MaxPool2dBackward& op, KernelRequest& request) {
    const Images where = want_images(request, 1);
    want_like(request, 0, request.in[1]);
    const bool masked = op.activation == Activation::relu;
    if (masked) want_like(request, 2, request.in[1]);
    if (where.channels_last)
        set_channels_last(request.out[0]);
    else
        request.out[0].strides = request.out[0].shape.contiguous_strides();
    Images dx = images_of(request.out[0]);
    dx.channels_last = where.channels_last;
    return visit_any_float(operation_name(op), request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [dx, where, masked, g = op.geometry](const Queue& queue, const KernelArgs& v) {
            enqueue_max_pool2d_backward(queue, g, dx, where, v.input<T>(0), v.input<Positions>(1),
                                        masked ? v.input<T>(2) : nullptr, v.output<T>(0));
        });
    });
}

}  // namespace

void add_pooling_kernels(KernelTable& table) {
    table.add<MaxPool2dForward, make_max_pool2d_forward>();
    table.add<MaxPool2dBackward, make_max_pool2d_backward>();
    table.add_half_types<MaxPool2dForward, make_for_half_images<MaxPool2dForward, make_max_pool2d_forward>>();
    table.add_half_types<MaxPool2dBackward, make_for_half_images<MaxPool2dBackward, make_max_pool2d_backward>>();
}

}  // namespace lockstep::cuda
