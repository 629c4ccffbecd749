// Interpolation. Backward gathers, so that every gradient is summed in one order. Special kernels
// double the size; they keep the elements that they read in registers.
#include <cmath>

#include "lockstep/ops/cuda/image_index.h"
#include "lockstep/ops/cuda/image_lines.h"
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/layout.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/internal/half_images.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep::cuda {

namespace {

/// One dimension of x (size `in`) and of the result (size `out`).
struct Dimension {
    std::int64_t in, out;
    double step;
    float exact_step;  ///< `step` if it is a power of two, so that all positions are exact in single precision; else 0
    bool nearest, align_corners;

    Dimension(const InterpolateGeometry& g, double distance, std::int64_t size, std::int64_t result)
        : in(size),
          out(result),
          step(distance),
          exact_step(0),
          nearest(g.nearest),
          align_corners(g.align_corners),
          per_step(distance > 0 ? 1 / distance : 0) {
        int exponent = 0;
        const bool power = std::frexp(step, &exponent) == 0.5 && std::abs(exponent) < 20;
        constexpr std::int64_t most = std::int64_t{1} << 22;
        if (power && in < most && out < most) exact_step = static_cast<float>(step);
    }
    bool doubles() const { return out == 2 * in && step == 0.5 && (nearest || !align_corners); }

    /// Most GPUs are slow at doubles.
    template <class T>
    LOCKSTEP_HD_INLINE element::Taps<T> taps(std::int64_t o) const {
        if (exact_step > 0) return element::interpolation_taps<T>(nearest, align_corners, exact_step, in, o);
        return element::interpolation_taps<T>(nearest, align_corners, step, in, o);
    }
    /// Weight of element `i` of x in element `o` of the result.
    template <class T>
    LOCKSTEP_HD_INLINE T weight(std::int64_t o, std::int64_t i) const {
        if (nearest) return T(1);
        const auto both = taps<T>(o);
        return both.first == i ? T(1) - both.share : both.share;
    }
    struct Readers {
        std::int64_t begin, end;
    };
    /// Elements of the result of which element `i` of x is a part.
    template <class T>
    LOCKSTEP_HD_INLINE Readers readers(std::int64_t i) const {
        auto all = exact_step > 0 ? candidates(static_cast<float>(per_step), i) : candidates(per_step, i);
        while (all.begin < all.end && !reads<T>(all.begin, i)) ++all.begin;
        while (all.begin < all.end && !reads<T>(all.end - 1, i)) --all.end;
        return all;
    }

private:
    double per_step;  ///< elements of the result from one element of x to the next; 0 if not known

    /// Elements of the result, which include all that read element `i`. `rate`: `per_step`.
    template <class Real>
    LOCKSTEP_HD_INLINE Readers candidates(Real rate, std::int64_t i) const {
        if (!(rate > 0)) return {0, out};
        // They read at less than one element from i; one more on either side covers rounding.
        const Real shift = !nearest && !align_corners ? Real(0.5) : Real(0);
        const Real low = std::floor((static_cast<Real>(i - 1) + shift) * rate - shift) - 1;
        const Real high = std::ceil((static_cast<Real>(i + 1) + shift) * rate - shift) + 2;
        const bool from_start = i == 0 || low <= 0, to_end = i == in - 1 || high >= static_cast<Real>(out);
        return {from_start ? 0 : static_cast<std::int64_t>(low), to_end ? out : static_cast<std::int64_t>(high)};
    }
    template <class T>
    LOCKSTEP_HD_INLINE bool reads(std::int64_t o, std::int64_t i) const {
        const auto both = taps<T>(o);
        return both.first == i || (both.second == i && both.share != T(0));
    }
};

/// Rounded in one way in all kernels, which a compiler would not promise for a sum of two products.
template <class T>
LOCKSTEP_HD_INLINE T mixed(T a, T b, T share) {
    return std::fma(T(1) - share, a, share * b);
}

template <class Stored, int width>
struct Interpolate {
    using T = UpcastType<Stored>;
    PixelWalk walk;  // over y
    Dimension rows, columns;
    const Stored* x;
    Stored* y;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t thread) const {
        const auto at = walk.place(thread);
        const auto vertical = rows.taps<T>(at.h), horizontal = columns.taps<T>(at.w);
        const std::int64_t row = columns.in * walk.pixel;
        const std::int64_t from = vertical.first * row + horizontal.first * walk.pixel + at.channel;
        const std::int64_t to = (at.h * walk.w + at.w) * walk.pixel + at.channel;
        const std::int64_t down = (vertical.second - vertical.first) * row;
        const std::int64_t across = (horizontal.second - horizontal.first) * walk.pixel;
        for (std::int64_t slice = at.slice; slice < walk.slices; slice += walk.slices_ahead) {
            const Stored* const corner = x + slice * rows.in * row + from;
            auto out = load_pack<width>(corner);
            if (!rows.nearest) {
                const auto second = load_pack<width>(corner + across), third = load_pack<width>(corner + down),
                           fourth = load_pack<width>(corner + down + across);
                for (int i = 0; i < width; ++i)
                    out.of[i] = CastTo<Stored>::from(
                        mixed(mixed(upcast(out.of[i]), upcast(second.of[i]), horizontal.share),
                              mixed(upcast(third.of[i]), upcast(fourth.of[i]), horizontal.share), vertical.share));
            }
            store_pack(y + slice * rows.out * walk.w * walk.pixel + to, out);
        }
    }
};

/// Interpolation to twice the size: a thread computes 2 x 2 elements of the result for every element of x.
template <class Stored, bool nearest, bool planes, int lanes>
struct InterpolateDouble {
    using T = UpcastType<Stored>;
    static constexpr int halo = nearest ? 0 : 1, size = 1 + 2 * halo;  // elements of x around it, in both directions
    static constexpr int strip = nearest ? 1 : 2;                      // rows of x of a thread: they share their halos
    PixelWalk walk;                                                    // over strips of x
    std::int64_t h, w;
    const Stored* x;
    Stored* y;

    /// Share of the later one of the two elements for element `o` of the result, at one side of element `i` of x.
    static LOCKSTEP_HD_INLINE T share(int side, std::int64_t i, std::int64_t last) {
        if (side == 0) return i > 0 ? T(0.75) : T(0);
        return i < last ? T(0.25) : T(0);
    }
    LOCKSTEP_HD_INLINE void operator()(std::int64_t thread) const {
        const auto at = walk.place(thread);
        const std::int64_t column = planes ? at.w * lanes : at.w, last = planes ? column + lanes - 1 : column;
        const std::int64_t top = at.h * strip;
        const int first = column > 0 ? 0 : halo, end = last < w - 1 ? size : size - halo;
        const Stored* const from = x + (at.slice * h * w + column - halo) * walk.pixel + at.channel;
        Line<Stored, planes, lanes, size, 1, planes ? halo : 0> lines[strip + 2 * halo];
        LOCKSTEP_UNROLL
        for (int r = 0; r < strip + 2 * halo; ++r) {
            std::int64_t row = top + r - halo;
            row = row < 0 ? 0 : row < h ? row : h - 1;
            lines[r].load(from + row * w * walk.pixel, walk.pixel, first, end, true, Stored{});
        }
        LOCKSTEP_UNROLL
        for (int down = 0; down < 2 * strip; ++down) {
            const int side = down % 2, line = down / 2 + side;
            const std::int64_t row = top + down / 2;
            if (row >= h) break;
            Line<Stored, planes, lanes, 2, 2> out;
            LOCKSTEP_UNROLL
            for (int k = 0; k < 2 * lanes; ++k) {
                const int across = k / lanes, lane = k % lanes;
                if constexpr (nearest) {
                    out.set(across, lane, lines[0](0, lane));
                } else {
                    // The first row of the result has the first two rows of x as its taps, the second with no share.
                    const bool is_first = down == 0 && row == 0;
                    const T upper = horizontal(lines[line], across, lane, column);
                    const T both = horizontal(lines[line + 1], across, lane, column);
                    const T lower = is_first ? horizontal(lines[2], across, lane, column) : both;
                    out.set(across, lane, CastTo<Stored>::from(mixed(upper, lower, share(side, row, h - 1))));
                }
            }
            out.store(y + ((at.slice * h + row) * 2 + side) * 2 * w * walk.pixel + column * 2 * walk.pixel + at.channel,
                      walk.pixel, 2);
        }
    }
    template <class Row>
    LOCKSTEP_HD_INLINE T horizontal(const Row& row, int across, int lane, std::int64_t column) const {
        const bool is_first = (!planes || lane == 0) && column == 0;
        const bool is_last = (!planes || lane == lanes - 1) && column + (planes ? lane : 0) == w - 1;
        const T centre = upcast(row(halo, lane)), right = is_last ? centre : upcast(row(size - 1, lane));
        if (across == 1) return mixed(centre, right, is_last ? T(0) : T(0.25));
        if (is_first) return mixed(centre, right, T(0));
        return mixed(upcast(row(0, lane)), centre, T(0.75));
    }
};

template <class Stored, int width>
struct GatherGradients {
    static constexpr int resident_blocks = width == 1 ? 0 : sizeof(Stored) == 8 ? 3 : sizeof(Stored) == 2 ? 4 : 0;
    using T = UpcastType<Stored>;
    PixelWalk walk;  // over dx
    Dimension rows, columns;
    const Stored* dy;
    Stored* dx;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t thread) const {
        constexpr int held = 4;  // weights of columns that a thread computes once
        const auto at = walk.place(thread);
        const auto of_rows = rows.readers<T>(at.h), of_columns = columns.readers<T>(at.w);
        T across[held];
        LOCKSTEP_UNROLL
        for (int i = 0; i < held; ++i)
            across[i] = of_columns.begin + i < of_columns.end ? columns.weight<T>(of_columns.begin + i, at.w) : T(0);
        const std::int64_t to = (at.h * walk.w + at.w) * walk.pixel + at.channel;
        const std::int64_t from = of_columns.begin * walk.pixel + at.channel;
        for (std::int64_t slice = at.slice; slice < walk.slices; slice += walk.slices_ahead) {
            T sum[width] = {};
            for (std::int64_t row = of_rows.begin; row < of_rows.end; ++row) {
                const T down = rows.weight<T>(row, at.h);
                const Stored* const line = dy + (slice * rows.out + row) * columns.out * walk.pixel + from;
                LOCKSTEP_UNROLL
                for (int i = 0; i < held; ++i)
                    if (of_columns.begin + i < of_columns.end) add(sum, down * across[i], line + i * walk.pixel);
                for (std::int64_t i = held; i < of_columns.end - of_columns.begin; ++i)
                    add(sum, down * columns.weight<T>(of_columns.begin + i, at.w), line + i * walk.pixel);
            }
            Pack<Stored, width> out;
            for (int i = 0; i < width; ++i) out.of[i] = CastTo<Stored>::from(sum[i]);
            store_pack(dx + slice * rows.in * walk.w * walk.pixel + to, out);
        }
    }
    static LOCKSTEP_HD_INLINE void add(T (&sum)[width], T share, const Stored* address) {
        const auto gradient = load_pack<width>(address);
        for (int i = 0; i < width; ++i) sum[i] += share * upcast(gradient.of[i]);
    }
};

/// GatherGradients of InterpolateDouble: 2 x 2 elements of dy for nearest, 4 x 4 for bilinear.
template <class Stored, bool nearest, bool planes, int lanes>
struct GatherDouble {
    using T = UpcastType<Stored>;
    static constexpr int halo = nearest ? 0 : 1, size = 2 + 2 * halo;
    static constexpr int strip = nearest ? 1 : 2;  // rows of dx of a thread: they share rows of dy
    PixelWalk walk;                                // over strips of dx
    std::int64_t h, w;
    const Stored* dy;
    Stored* dx;

    /// Weight of an element of x in the k-th element of dy of which it is a part.
    static LOCKSTEP_HD_INLINE T weight(int k, bool is_first, bool is_last) {
        if (nearest || (k == 1 && is_first) || (k == 2 && is_last)) return T(1);
        return k == 1 || k == 2 ? T(0.75) : T(0.25);
    }
    LOCKSTEP_HD_INLINE void operator()(std::int64_t thread) const {
        const auto at = walk.place(thread);
        const std::int64_t column = planes ? at.w * lanes : at.w, last = planes ? column + lanes - 1 : column;
        const int first = column > 0 ? 0 : halo, end = last < w - 1 ? size : size - halo;
        const std::int64_t own = at.h * strip, top = own * 2 - halo, row = 2 * w * walk.pixel;
        const Stored* const from = dy + at.slice * 2 * h * row + (column * 2 - halo) * walk.pixel + at.channel;
        T sums[strip][lanes] = {};
        LOCKSTEP_UNROLL
        for (int r = 0; r < size + 2 * (strip - 1); ++r) {
            // Elements that do not exist are 0.
            const bool exists = top + r >= 0 && top + r < 2 * h;
            Line<Stored, planes, lanes, size, 2, planes ? halo : 0> line;
            line.load(from + (top + r) * row, walk.pixel, first, end, exists, Stored{});
            LOCKSTEP_UNROLL
            for (int s = 0; s < strip; ++s) {
                const int k = r - 2 * s;
                if (k < 0 || k >= size) continue;
                const T down = weight(k, own + s == 0, own + s == h - 1);
                LOCKSTEP_UNROLL
                for (int i = 0; i < lanes; ++i) {
                    const bool is_first = (!planes || i == 0) && column == 0;
                    const bool is_last = (!planes || i == lanes - 1) && last == w - 1;
                    LOCKSTEP_UNROLL
                    for (int c = 0; c < size; ++c)
                        sums[s][i] += down * weight(c, is_first, is_last) * upcast(line(c, i));
                }
            }
        }
        LOCKSTEP_UNROLL
        for (int s = 0; s < strip; ++s) {
            if (own + s >= h) break;
            Pack<Stored, lanes> out;
            LOCKSTEP_UNROLL
            for (int i = 0; i < lanes; ++i) out.of[i] = CastTo<Stored>::from(sums[s][i]);
            store_pack(dx + ((at.slice * h + own + s) * w + column) * walk.pixel + at.channel, out);
        }
    }
};

/// Gives the only output the layout of the only input.
Images lay_out_as_input(KernelRequest& request) {
    const Images from = want_images(request, 0);
    if (from.channels_last)
        set_channels_last(request.out[0]);
    else
        request.out[0].strides = request.out[0].shape.contiguous_strides();
    return from;
}

Images like_input(const TensorMeta& meta, const Images& input) {
    Images images = images_of(meta);
    images.channels_last = input.channels_last;
    return images;
}

/// Calls run(nearest, planes, lanes), integral constants, if the kernels for twice the size serve the images.
template <class Stored, class Run>
bool with_double(const Dimension& rows, const Dimension& columns, const Images& x, bool aligned, const Run& run) {
    if (!rows.doubles() || !columns.doubles()) return false;
    return with_lanes<Stored>(x, x.w, true, aligned, [&](auto planes, auto lanes) {
        if (rows.nearest)
            run(std::true_type(), planes, lanes);
        else
            run(std::false_type(), planes, lanes);
    });
}

KernelPtr make_interpolate_forward(const InterpolateForward& op, KernelRequest& request) {
    const Images x = lay_out_as_input(request);
    const Images y = like_input(request.out[0], x);
    const Dimension rows(op.geometry, op.geometry.step_h, x.h, y.h), columns(op.geometry, op.geometry.step_w, x.w, y.w);
    return visit_any_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [x, y, rows, columns](const Queue& queue, const KernelArgs& v) {
            const char* const name = "interpolate_forward";
            const T* const from = v.input<T>(0);
            T* const to = v.output<T>(0);
            const bool aligned = are_aligned<widest<T>>(from, to);
            if (with_double<T>(rows, columns, x, aligned, [&](auto nearest, auto planes, auto lanes) {
                    using Function = InterpolateDouble<T, nearest, planes, lanes>;
                    const PixelWalk walk = walk_lanes<planes, lanes>(x, ceil_div(x.h, Function::strip), x.w);
                    launch(queue, name, walk.threads(), Function{walk, x.h, x.w, from, to});
                }))
                return;
            with_channel_packs<T>(x, aligned, [&](auto width) {
                const PixelWalk walk(y, y.h, y.w, width);
                launch(queue, name, walk.threads(), Interpolate<T, width>{walk, rows, columns, from, to});
            });
        });
    });
}

KernelPtr make_interpolate_backward(const InterpolateBackward& op, KernelRequest& request) {
    const Images dy = lay_out_as_input(request);
    const Images x = like_input(request.out[0], dy);
    const Dimension rows(op.geometry, op.geometry.step_h, x.h, dy.h),
        columns(op.geometry, op.geometry.step_w, x.w, dy.w);
    return visit_any_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [x, rows, columns](const Queue& queue, const KernelArgs& v) {
            const char* const name = "interpolate_backward";
            const T* const from = v.input<T>(0);
            T* const to = v.output<T>(0);
            const bool aligned = are_aligned<widest<T>>(from, to);
            if (with_double<T>(rows, columns, x, aligned, [&](auto nearest, auto planes, auto lanes) {
                    using Function = GatherDouble<T, nearest, planes, lanes>;
                    const PixelWalk walk = walk_lanes<planes, lanes>(x, ceil_div(x.h, Function::strip), x.w);
                    launch(queue, name, walk.threads(), Function{walk, x.h, x.w, from, to});
                }))
                return;
            with_channel_packs<T>(x, aligned, [&](auto width) {
                const PixelWalk walk(x, x.h, x.w, width);
                launch(queue, name, walk.threads(), GatherGradients<T, width>{walk, rows, columns, from, to});
            });
        });
    });
}

}  // namespace

void add_interpolate_kernels(KernelTable& table) {
    table.add<InterpolateForward, make_interpolate_forward>();
    table.add<InterpolateBackward, make_interpolate_backward>();
    table.add_half_types<InterpolateForward, make_for_half_images<InterpolateForward, make_interpolate_forward>>();
    table.add_half_types<InterpolateBackward, make_for_half_images<InterpolateBackward, make_interpolate_backward>>();
}

}  // namespace lockstep::cuda
