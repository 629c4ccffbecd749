// Interpolation, from tables of the rows and columns. Backward gathers, so that every gradient is summed in one order.
#include "lockstep/ops/cuda/image_index.h"
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/layout.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/internal/half_images.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep::cuda {

namespace {

/// One element of the result along a dimension; the second element of x that it reads is the next one, if there is one.
template <class T>
struct Tap {
    T share;
    std::int32_t first;
};

/// Elements [begin, end) of the result that read an element of x.
struct ReadBy {
    std::int32_t begin, end;
};

/// One dimension of x (size `in`) and of the result (size `out`).
struct Dimension {
    double step;
    std::int64_t in, out;
};

/// The tables of both dimensions in scratch, one after the other: their values depend on shapes only, and computing
/// them takes doubles, which most GPUs are slow at.
template <class T>
struct Tables {
    Dimension rows, columns;
    bool nearest, align_corners, backward;
    Tap<T>* taps;     // rows of the result, then columns
    ReadBy* readers;  // rows of x, then columns; only for backward

    std::int64_t entries() const { return rows.out + columns.out + (backward ? rows.in + columns.in : 0); }
    std::size_t taps_bytes() const {
        return round_up(static_cast<std::size_t>(rows.out + columns.out) * sizeof(Tap<T>), scratch_alignment);
    }
    std::size_t bytes() const {
        return taps_bytes() + (backward ? static_cast<std::size_t>(rows.in + columns.in) * sizeof(ReadBy) : 0);
    }
    Tables in(void* scratch) const {
        Tables bound = *this;
        bound.taps = static_cast<Tap<T>*>(scratch);
        bound.readers = reinterpret_cast<ReadBy*>(static_cast<char*>(scratch) + taps_bytes());
        return bound;
    }

    LOCKSTEP_HD_INLINE element::Taps<T> taps_of(const Dimension& d, std::int64_t o) const {
        return element::interpolation_taps<T>(nearest, align_corners, d.step, d.in, o);
    }
    LOCKSTEP_HD_INLINE bool reads(const Dimension& d, std::int64_t o, std::int64_t i) const {
        const auto both = taps_of(d, o);
        return both.first == i || both.second == i;
    }
    LOCKSTEP_HD_INLINE ReadBy readers_of(const Dimension& d, std::int64_t i) const {
        auto all = element::interpolation_readers(nearest, align_corners, d.step, d.in, d.out, i);
        while (all.begin < all.end && !reads(d, all.begin, i)) ++all.begin;
        while (all.begin < all.end && !reads(d, all.end - 1, i)) --all.end;
        return {static_cast<std::int32_t>(all.begin), static_cast<std::int32_t>(all.end)};
    }
    /// Makes one entry.
    LOCKSTEP_HD_INLINE void operator()(std::int64_t entry) const {
        const std::int64_t of_taps = rows.out + columns.out;
        if (entry < of_taps) {
            const auto both = entry < rows.out ? taps_of(rows, entry) : taps_of(columns, entry - rows.out);
            taps[entry] = {both.share, static_cast<std::int32_t>(both.first)};
        } else {
            const std::int64_t i = entry - of_taps;
            readers[i] = i < rows.in ? readers_of(rows, i) : readers_of(columns, i - rows.in);
        }
    }
};

template <class Stored, int width>
struct Interpolate {
    using T = UpcastType<Stored>;
    PixelWalk walk;  // over y
    std::int64_t out_h, h, w;
    bool nearest;
    const Tap<T>* taps;
    const Stored* x;
    Stored* y;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t thread) const {
        const auto at = walk.place(thread);
        const Tap<T> vertical = taps[at.h], horizontal = taps[out_h + at.w];
        const T below = vertical.share, above = T(1) - below, right = horizontal.share, left = T(1) - right;
        const std::int64_t row = w * walk.pixel;
        const std::int64_t from = vertical.first * row + horizontal.first * walk.pixel + at.channel;
        const std::int64_t to = (at.h * walk.w + at.w) * walk.pixel + at.channel;
        const std::int64_t down = vertical.first < h - 1 ? row : 0, across = horizontal.first < w - 1 ? walk.pixel : 0;
        for (std::int64_t slice = at.slice; slice < walk.slices; slice += walk.slices_ahead) {
            const Stored* const corner = x + slice * h * row + from;
            auto out = load_pack<width>(corner);
            if (!nearest) {
                const auto second = load_pack<width>(corner + across), third = load_pack<width>(corner + down),
                           fourth = load_pack<width>(corner + down + across);
                for (int i = 0; i < width; ++i)
                    out.of[i] =
                        CastTo<Stored>::from(above * (left * upcast(out.of[i]) + right * upcast(second.of[i])) +
                                             below * (left * upcast(third.of[i]) + right * upcast(fourth.of[i])));
            }
            store_pack(y + slice * out_h * walk.w * walk.pixel + to, out);
        }
    }
};

template <class Stored, int width>
struct GatherGradients {
    using T = UpcastType<Stored>;
    PixelWalk walk;  // over dx
    std::int64_t h, out_h, out_w;
    bool nearest;
    const Tap<T>* taps;
    const ReadBy* readers;
    const Stored* dy;
    Stored* dx;

    /// Weight of element `i` of x in a result that reads it.
    LOCKSTEP_HD_INLINE T weight(const Tap<T>& tap, std::int64_t i) const {
        if (nearest) return T(1);
        return tap.first == i ? T(1) - tap.share : tap.share;
    }
    LOCKSTEP_HD_INLINE void operator()(std::int64_t thread) const {
        constexpr int held = 4;  // as many columns as read an element when the size doubles
        const auto at = walk.place(thread);
        const ReadBy rows = readers[at.h], columns = readers[h + at.w];
        T across[held];
        for (int i = 0; i < held; ++i)
            across[i] = columns.begin + i < columns.end ? weight(taps[out_h + columns.begin + i], at.w) : T(0);
        const std::int64_t to = (at.h * walk.w + at.w) * walk.pixel + at.channel;
        const std::int64_t from = columns.begin * walk.pixel + at.channel;
        for (std::int64_t slice = at.slice; slice < walk.slices; slice += walk.slices_ahead) {
            T sum[width] = {};
            for (std::int32_t row = rows.begin; row < rows.end; ++row) {
                const T down = weight(taps[row], at.h);
                const Stored* const line = dy + (slice * out_h + row) * out_w * walk.pixel + from;
                for (int i = 0; i < held; ++i)
                    if (columns.begin + i < columns.end) add(sum, down * across[i], line + i * walk.pixel);
                for (std::int32_t i = held; i < columns.end - columns.begin; ++i)
                    add(sum, down * weight(taps[out_h + columns.begin + i], at.w), line + i * walk.pixel);
            }
            Pack<Stored, width> out;
            for (int i = 0; i < width; ++i) out.of[i] = CastTo<Stored>::from(sum[i]);
            store_pack(dx + slice * h * walk.w * walk.pixel + to, out);
        }
    }
    static LOCKSTEP_HD_INLINE void add(T (&sum)[width], T share, const Stored* address) {
        const auto gradient = load_pack<width>(address);
        for (int i = 0; i < width; ++i) sum[i] += share * upcast(gradient.of[i]);
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

template <class T>
Tables<T> tables_of(const InterpolateGeometry& g, const Images& x, const Images& y, bool backward) {
    return {{g.step_h, x.h, y.h}, {g.step_w, x.w, y.w}, g.nearest, g.align_corners, backward, nullptr, nullptr};
}

KernelPtr make_interpolate_forward(const InterpolateForward& op, KernelRequest& request) {
    const Images x = lay_out_as_input(request);
    const Images y = like_input(request.out[0], x);
    return visit_any_float(op.name, request.in[0].dtype, [&](auto zero) {
        using Stored = decltype(zero);
        const auto tables = tables_of<UpcastType<Stored>>(op.geometry, x, y, false);
        return make_cuda_kernel(
            request,
            [x, y, tables](const Queue& queue, const KernelArgs& v) {
                const auto bound = tables.in(v.scratch);
                launch(queue, "interpolate_tables", bound.entries(), bound);
                const auto* from = v.input<Stored>(0);
                auto* const to = v.output<Stored>(0);
                with_channel_packs<Stored>(x, are_aligned<widest<Stored>>(from, to), [&](auto width) {
                    const PixelWalk walk(y, y.h, y.w, width);
                    launch(queue, "interpolate_forward", walk.threads(),
                           Interpolate<Stored, width>{walk, y.h, x.h, x.w, bound.nearest, bound.taps, from, to});
                });
            },
            tables.bytes());
    });
}

KernelPtr make_interpolate_backward(const InterpolateBackward& op, KernelRequest& request) {
    const Images dy = lay_out_as_input(request);
    const Images dx = like_input(request.out[0], dy);
    return visit_any_float(op.name, request.in[0].dtype, [&](auto zero) {
        using Stored = decltype(zero);
        const auto tables = tables_of<UpcastType<Stored>>(op.geometry, dx, dy, true);
        return make_cuda_kernel(
            request,
            [dx, dy, tables](const Queue& queue, const KernelArgs& v) {
                const auto bound = tables.in(v.scratch);
                launch(queue, "interpolate_tables", bound.entries(), bound);
                const auto* from = v.input<Stored>(0);
                auto* const to = v.output<Stored>(0);
                with_channel_packs<Stored>(dx, are_aligned<widest<Stored>>(from, to), [&](auto width) {
                    const PixelWalk walk(dx, dx.h, dx.w, width);
                    launch(queue, "interpolate_backward", walk.threads(),
                           GatherGradients<Stored, width>{walk, dx.h, dy.h, dy.w, bound.nearest, bound.taps,
                                                          bound.readers, from, to});
                });
            },
            tables.bytes());
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
