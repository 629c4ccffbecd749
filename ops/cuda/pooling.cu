// Max pooling with recorded positions. Backward gathers, so that every gradient is summed in one order. Special
// kernels serve windows of 2 x 2 and 3 x 3 that halve the size; they keep the elements that they read in registers.
#include <bit>
#include <limits>

#include "lockstep/ops/cuda/image_index.h"
#include "lockstep/ops/cuda/image_lines.h"
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

/// Windows of `side` x `side`, 2 or 3, with stride 2, of which those at the upper and left edge begin in the padding by
/// as much as windows overlap: 1 element if `side` is 3.
template <class Stored, int side, bool planes, int lanes>
struct HalvingPool {
    static constexpr int resident_blocks = sizeof(Stored) == 8 ? 4 : 0;
    static constexpr int overlap = side - 2;
    PixelWalk walk;  // over y
    std::int64_t h, w, out_h, out_w;
    const Stored* x;
    Stored* y;
    Positions* where;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t thread) const {
        using T = UpcastType<Stored>;
        const auto at = walk.place(thread);
        const std::int64_t column = planes ? at.w * lanes : at.w, last = planes ? column + lanes - 1 : column;
        const std::int64_t top = at.h * 2 - overlap, left = column * 2 - overlap;
        const int first_row = top < 0 ? 1 : 0, first_column = left < 0 ? 1 : 0;
        const int rows = at_most(h - top, side), columns = at_most(w - (last * 2 - overlap), side);
        const Stored* const from = x + ((at.slice * h + top) * w + left) * walk.pixel + at.channel;
        const auto lowest = CastTo<Stored>::from(-std::numeric_limits<T>::infinity());
        Line<Stored, planes, lanes, side, 2, planes ? overlap : 0> lines[side];
        LOCKSTEP_UNROLL
        for (int kh = 0; kh < side; ++kh)
            lines[kh].load(from + kh * w * walk.pixel, walk.pixel, first_column, columns, kh >= first_row && kh < rows,
                           lowest);
        // If all elements of a window are the lowest, its first one counts.
        Pack<Stored, lanes> best;
        Pack<Positions, lanes> position;
        LOCKSTEP_UNROLL
        for (int i = 0; i < lanes; ++i) {
            best.of[i] = lowest;
            position.of[i] = static_cast<Positions>(first_row * side + (planes && i > 0 ? 0 : first_column));
            T largest = upcast(lowest);
            LOCKSTEP_UNROLL
            for (int k = 0; k < side * side; ++k) {
                const Stored candidate = lines[k / side](k % side, i);
                if (!element::pool_takes(upcast(candidate), largest)) continue;
                best.of[i] = candidate;
                largest = upcast(candidate);
                position.of[i] = static_cast<Positions>(k);
            }
        }
        const std::int64_t to = ((at.slice * out_h + at.h) * out_w + column) * walk.pixel + at.channel;
        store_pack(y + to, best);
        store_pack(where + to, position);
    }
};

/// A gradient after the activation whose result is given.
template <class Stored>
LOCKSTEP_HD_INLINE Stored masked(Stored gradient, Stored result) {
    return CastTo<Stored>::from(functor::Relu().gradient(upcast(gradient), upcast(result)));
}
/// dy after the activation, if there is one (y is not null).
template <int width, class Stored>
LOCKSTEP_HD_INLINE Pack<Stored, width> gradient_at(const Stored* dy, const Stored* y, std::int64_t at) {
    auto gradient = load_pack<width>(dy + at);
    if (y == nullptr) return gradient;
    const auto result = load_pack<width>(y + at);
    for (int i = 0; i < width; ++i) gradient.of[i] = masked(gradient.of[i], result.of[i]);
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
    static constexpr int resident_blocks = sizeof(Stored) == 8 ? 3 : 0;
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

/// Unpool for the windows of HalvingPool: a thread writes the first 2 x 2 elements after the overlap of every window.
template <class Stored, int side, bool planes, int lanes>
struct HalvingUnpool {
    static constexpr int overlap = side - 2, windows = 1 + overlap;  // windows that contain an element, per dimension
    PixelWalk walk;  // over the groups of 2 x 2 elements, of which those at the lower and right edge may be incomplete
    std::int64_t h, w, out_h, out_w;
    const Stored* dy;
    const Positions* where;
    const Stored* y;  // null without an activation
    Stored* dx;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t thread) const {
        using T = UpcastType<Stored>;
        const auto at = walk.place(thread);
        const std::int64_t column = planes ? at.w * lanes : at.w, last = planes ? column + lanes - 1 : column;
        const int end = at_most(out_w - last, windows);
        const std::int64_t from = ((at.slice * out_h + at.h) * out_w + column) * walk.pixel + at.channel;
        const std::int64_t row = out_w * walk.pixel;
        const bool masks = y != nullptr;
        const Stored* const result = masks ? y : dy;
        Line<Stored, planes, lanes, windows, 1> gradients[windows], results[windows];
        Line<Positions, planes, lanes, windows, 1> winners[windows];
        // Windows that do not exist have gradients of 0.
        LOCKSTEP_UNROLL
        for (int r = 0; r < windows; ++r) {
            const bool exists = at.h + r < out_h;
            gradients[r].load(dy + from + r * row, walk.pixel, 0, end, exists, Stored{});
            winners[r].load(where + from + r * row, walk.pixel, 0, end, exists, 0);
            results[r].load(result + from + r * row, walk.pixel, 0, end, exists && masks, Stored{});
        }
        LOCKSTEP_UNROLL
        for (int r = 0; r < windows; ++r) {
            LOCKSTEP_UNROLL
            for (int i = 0; i < gradients[r].count; ++i)
                if (masks) gradients[r].of[i] = masked(gradients[r].of[i], results[r].of[i]);
        }
        LOCKSTEP_UNROLL
        for (int down = 0; down < 2; ++down) {
            if (at.h * 2 + down >= h) break;
            Line<Stored, planes, lanes, 2, 2> out;
            LOCKSTEP_UNROLL
            for (int k = 0; k < 2 * lanes; ++k) {
                const int across = k / lanes, lane = k % lanes;
                T sum = T(0);
                LOCKSTEP_UNROLL
                for (int window = 0; window < windows * windows; ++window) {
                    const int r = window / windows, c = window % windows;
                    const int kh = down + overlap - 2 * r, kw = across + overlap - 2 * c;
                    if (kh < 0 || kw < 0) continue;
                    if (winners[r](c, lane) == kh * side + kw) sum += upcast(gradients[r](c, lane));
                }
                out.set(across, lane, CastTo<Stored>::from(sum));
            }
            out.store(dx + ((at.slice * h + at.h * 2 + down) * w + column * 2) * walk.pixel + at.channel, walk.pixel,
                      at_most(w - column * 2, 2));
        }
    }
};

/// The side of the windows if they are HalvingPool's; otherwise 0.
int halving_side(const PoolGeometry& g) {
    const int side = g.kernel_h;
    const bool halves = (side == 2 || side == 3) && g.kernel_w == side && g.stride_h == 2 && g.stride_w == 2 &&
                        g.pad_h == side - 2 && g.pad_w == side - 2;
    return halves ? side : 0;
}

/// Calls run(side, planes, lanes), integral constants, if a kernel for halves serves the images.
template <class Stored, class Run>
bool with_halves(const PoolGeometry& g, const Images& large, const Images& small, bool aligned, const Run& run) {
    const int side = halving_side(g);
    if (side == 0) return false;
    return with_lanes<Stored>(small, small.w, large.w == 2 * small.w, aligned, [&](auto planes, auto lanes) {
        if (side == 2)
            run(std::integral_constant<int, 2>(), planes, lanes);
        else
            run(std::integral_constant<int, 3>(), planes, lanes);
    });
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
            const bool aligned = are_aligned<widest<T>>(from, to, where);
            if (with_halves<T>(g, x, y, aligned, [&](auto side, auto planes, auto lanes) {
                    const PixelWalk walk = walk_lanes<planes, lanes>(y, y.h, y.w);
                    launch(queue, "max_pool2d_forward", walk.threads(),
                           HalvingPool<T, side, planes, lanes>{walk, x.h, x.w, y.h, y.w, from, to, where});
                }))
                return;
            const std::int64_t out_slice = y.h * y.w * (y.channels_last ? y.c : 1);
            with_channel_packs<T>(x, aligned, [&](auto width) {
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
    const bool aligned = are_aligned<widest<T>>(dy, where, y, dx);
    if (with_halves<T>(g, x, out, aligned, [&](auto side, auto planes, auto lanes) {
            const PixelWalk walk = walk_lanes<planes, lanes>(x, ceil_div(x.h, 2), planes ? out.w : ceil_div(x.w, 2));
            launch(queue, name, walk.threads(),
                   HalvingUnpool<T, side, planes, lanes>{walk, x.h, x.w, out.h, out.w, dy, where, y, dx});
        }))
        return;
    with_channel_packs<T>(x, aligned, [&](auto width) {
        const PixelWalk walk(x, x.h, x.w, width);
        const Windows rows(g.kernel_h, g.stride_h, g.pad_h, out.h), columns(g.kernel_w, g.stride_w, g.pad_w, out.w);
        launch(queue, name, walk.threads(),
               Unpool<T, width>{walk, rows, columns, x.h * x.w * walk.pixel, dy, where, y, dx});
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
