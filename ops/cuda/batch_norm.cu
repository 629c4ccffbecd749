// Batch normalisation over (N, H, W), in either dense layout of images. For 16-bit images, statistics, weights and sums
// are f32.
#include "lockstep/ops/cuda/channel_moments.h"
#include "lockstep/ops/cuda/channel_sums.h"
#include "lockstep/ops/cuda/column_tiles.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/layout.h"
#include "lockstep/ops/cuda/pack.h"
#include "lockstep/ops/cuda/running_sum.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/cuda/unroll.h"
#include "lockstep/ops/internal/half_images.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/ops/internal/unary_functions.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep::cuda {

namespace {

/// Packs of adjacent channels are columns, other packs never are.
template <int width, bool across>
using PlansOfPacks = std::conditional_t<across, OnlyColumns, std::conditional_t<(width > 1), NoColumns, AnyPlan>>;

/// The gradient of ReLU's input, which is the normalised x; computes it as forward did.
template <class Stored, class T>
LOCKSTEP_HD_INLINE T through_relu(T dy, T x, T mean, T scale, T shift) {
    const auto y = CastTo<Stored>::from(element::normalize(x, mean, scale, shift));
    return functor::Relu().gradient(dy, static_cast<T>(upcast(y)));
}

/// `across`: packs of adjacent channels.
template <class Stored, int width, bool across>
struct ChannelStats {
    using Plans = PlansOfPacks<width, across>;
    using Moments = ChannelMoments<Stored, width, across>;
    using T = typename Moments::T;
    using Value = typename Moments::Value;
    static constexpr int channels = Moments::channels;
    static constexpr int resident_blocks = across ? 0 : 2;
    Moments moments;
    T* stats;

    LOCKSTEP_HD_INLINE Value zero() const { return {}; }
    LOCKSTEP_HD_INLINE void add_all(Value& value, std::int64_t output, std::int64_t first, std::int64_t end,
                                    std::int64_t step) const {
        moments.add_all(value, output, first, end, step);
    }
    LOCKSTEP_HD_INLINE void join(Value& value, const Value& other) const { moments.join(value, other); }
    template <class Group>
    LOCKSTEP_ROW_FUNCTION Value joined(const Value& own, const Group& group) const {
        return moments.joined(own, group);
    }
    LOCKSTEP_HD_INLINE void finish(std::int64_t output, const Value& value) const {
        const std::int64_t all = moments.layout.channels * channels;
        for (int c = 0; c < channels; ++c) {
            const std::int64_t channel = output * channels + c;
            stats[channel] = moments.mean(output, c, value);
            stats[all + channel] = value.m2[c];
        }
        if (output == 0) stats[2 * all] = static_cast<T>(moments.count());
    }
};

/// `relu`: dy is the gradient of ReLU's result.
template <class Stored, int width, bool across, bool relu>
struct BackwardSums {
    using Plans = PlansOfPacks<width, across>;
    using T = UpcastType<Stored>;
    static constexpr int channels = across ? width : 1;                // in a pack
    static constexpr int at_once = across ? 32 / width : 4;            // loads in flight of each input
    static constexpr int means = across && width > 1 ? widest<T> : 1;  // in one access
    static constexpr int resident_blocks = width == 1 ? 3 : across || sizeof(Stored) == 4 ? 0 : 2;
    struct alignas(channels % 4 == 0 ? 16 : alignof(RunningSum<T>)) Value {
        struct {
            RunningSum<T> dy, dy_xhat;
        } of[channels];
    };
    ChannelLayout layout;  // counts packs
    double eps;
    PackedInput<Stored, width> x, dy;
    PackedInput<T, means> stats;
    const T* weight;  // these two only with ReLU
    const T* bias;
    T* sums;
    T* dbias;
    T* dweight;

    static PackedInput<T, means> packed_stats(const T* data) { return packed_input<means>(data); }
    LOCKSTEP_HD_INLINE Value zero() const { return {}; }
    LOCKSTEP_HD_INLINE void add_all(Value& value, std::int64_t output, std::int64_t first, std::int64_t end,
                                    std::int64_t step) const {
        if (first >= end) return;
        ChannelWalk walk(layout, output, first, step);
        OfChannels of;
        LOCKSTEP_UNROLL
        for (int c = 0; c < channels; c += means) {
            const Pack<T, means> loaded = stats.at(output * channels + c);
            for (int i = 0; i < means; ++i) of.mean[c + i] = loaded.of[i];
        }
        LOCKSTEP_UNROLL
        for (int c = 0; c < (relu ? channels : 0); ++c) {
            const std::int64_t channel = output * channels + c;
            of.scale[c] = element::or_else(weight, channel, T(1)) * deviation(channel);
            of.shift[c] = element::or_else(bias, channel, T(0));
        }
        std::int64_t k = first;
        for (; k + (at_once - 1) * step < end; k += at_once * step) add_packs<at_once>(value, walk, of);
        for (; k < end; k += step) add_packs<1>(value, walk, of);
    }
    LOCKSTEP_HD_INLINE void join(Value& value, const Value& other) const {
        for (int c = 0; c < channels; ++c) {
            value.of[c].dy.add(other.of[c].dy);
            value.of[c].dy_xhat.add(other.of[c].dy_xhat);
        }
    }
    LOCKSTEP_HD_INLINE void finish(std::int64_t output, const Value& value) const {
        const std::int64_t all = layout.channels * channels;
        for (int c = 0; c < channels; ++c) {
            const std::int64_t channel = output * channels + c;
            const T of_bias = value.of[c].dy.value(), of_weight = value.of[c].dy_xhat.value() * deviation(channel);
            sums[channel] = of_bias;
            sums[all + channel] = of_weight;
            if (dbias != nullptr) dbias[channel] = of_bias;
            if (dweight != nullptr) dweight[channel] = of_weight;
        }
    }

private:
    struct OfChannels {
        T mean[channels];
        T scale[relu ? channels : 1], shift[relu ? channels : 1];
    };
    LOCKSTEP_HD_INLINE T deviation(std::int64_t channel) const {
        const std::int64_t all = layout.channels * channels;
        return element::inverse_deviation(stats.data[all + channel], stats.data[2 * all], eps);
    }
    template <int count>
    LOCKSTEP_HD_INLINE void add_packs(Value& value, ChannelWalk& walk, const OfChannels& of) const {
        Pack<Stored, width> inputs[count], gradients[count];
        LOCKSTEP_UNROLL
        for (int i = 0; i < count; ++i) {
            const std::int64_t pack = walk.next();
            inputs[i] = x.load(pack);
            gradients[i] = dy.load(pack);
        }
        // Few neighbours are added as they are, and only their sums to the running sums: fewer instructions.
        LOCKSTEP_UNROLL
        for (int c = 0; c < channels; ++c) {
            constexpr int elements = count * width / channels;  // per channel
            T of_dy[elements], of_dy_xhat[elements];
            LOCKSTEP_UNROLL
            for (int e = 0; e < elements; ++e) {
                const int i = across ? e : e / width, j = across ? c : e % width;
                const T input = upcast(inputs[i].of[j]);
                T gradient = upcast(gradients[i].of[j]);
                if constexpr (relu)
                    gradient = through_relu<Stored>(gradient, input, of.mean[c], of.scale[c], of.shift[c]);
                of_dy[e] = gradient;
                of_dy_xhat[e] = gradient * (input - of.mean[c]);
            }
            value.of[c].dy.add(sum_in_pairs(of_dy));
            value.of[c].dy_xhat.add(sum_in_pairs(of_dy_xhat));
        }
    }
};

/// Packs for reductions over channels, and the order of the reduction: threads read the same amount as without packs.
struct ChannelPacks {
    ChannelLayout layout;
    ReducePlan plan;
};

/// Calls make(width, across, packs), the first two as integral constants: the widest packs of adjacent elements of one
/// channel, or of adjacent channels.
template <class Stored, class Make>
KernelPtr with_channel_packs(const Images& x, const Make& make) {
    constexpr int wide = widest<Stored>;
    using Wide = std::integral_constant<int, wide>;
    ChannelLayout layout = ChannelLayout::of(x);
    if (layout.inner == 1 && layout.channels % wide == 0) {
        layout.channels /= wide;
        return make(Wide(), std::true_type(), ChannelPacks{layout, channels_plan(layout)});
    }
    if (layout.inner % wide == 0) {
        layout.inner /= wide;
        const ReducePlan plan = ReducePlan::make(layout.channels, layout.count(), false, wide);
        return make(Wide(), std::false_type(), ChannelPacks{layout, plan});
    }
    return make(std::integral_constant<int, 1>(), std::false_type(), ChannelPacks{layout, channels_plan(layout)});
}

/// Images as rows of packs, each with elements of one channel. A thread works on one column, whose packs have the same
/// channel, so that it computes what it needs of it once.
struct ChannelColumns {
    static constexpr int at_once = 4;  // loads in flight

    std::int64_t packs, columns, threads = 0;
    std::int64_t packs_of_channel;  // adjacent packs of one channel

    ChannelColumns(const Images& x, int width)
        : packs(x.n * x.c * x.h * x.w / width),
          columns((x.channels_last ? x.c : x.c * x.h * x.w) / width),
          packs_of_channel(x.channels_last ? 1 : x.h * x.w / width) {
        if (packs == 0) return;
        const std::int64_t rows = ceil_div(packs / columns, at_once);
        threads = columns * std::clamp<std::int64_t>(enough_threads / columns, 1, rows);
    }
    LOCKSTEP_HD_INLINE std::int64_t channel(std::int64_t thread) const {
        return quick_quotient(thread - quick_quotient(thread, columns) * columns, packs_of_channel);
    }
};

/// One of the `threads` of ChannelColumns. F is also the functor of launch_columns.
template <class F>
struct OnChannelColumns {
    ChannelColumns columns;
    F f;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t thread) const {
        const auto of_channel = f.value(columns.channel(thread));
        typename F::Value own[F::width];
        for (auto& each : own) each = of_channel;
        for_loaded<ChannelColumns::at_once>(
            thread, columns.packs, columns.threads, [&](std::int64_t pack) { return f.load(pack); },
            [&](const auto& loaded, std::int64_t pack) { f.store(pack, loaded, own); });
    }
};

template <class Stored, int pack_width>
struct Normalize {
    static constexpr int width = pack_width;
    using T = UpcastType<Stored>;
    using Values = Pack<Stored, width>;
    struct Value {
        T mean, scale, shift;
    };
    std::int64_t channels;
    double eps;
    const Stored* x;
    const T* stats;
    const T* weight;
    const T* bias;
    bool relu;
    Stored* y;

    LOCKSTEP_HD_INLINE Value value(std::int64_t c) const {
        const T deviation = element::inverse_deviation(stats[channels + c], stats[2 * channels], eps);
        return {stats[c], element::or_else(weight, c, T(1)) * deviation, element::or_else(bias, c, T(0))};
    }
    LOCKSTEP_HD_INLINE Values load(std::int64_t pack) const { return load_pack<width>(x + pack * width); }
    LOCKSTEP_HD_INLINE void store(std::int64_t pack, const Values& in, const Value (&of)[width]) const {
        Values out;
        LOCKSTEP_UNROLL
        for (int i = 0; i < width; ++i) {
            const Stored result =
                CastTo<Stored>::from(element::normalize(upcast(in.of[i]), of[i].mean, of[i].scale, of[i].shift));
            out.of[i] = relu && upcast(result) < T(0) ? Stored() : result;  // small numbers that round to -0 remain
        }
        store_pack(y + pack * width, out);
    }
};

template <class Stored, int pack_width>
struct NormalizeBackward {
    static constexpr int width = pack_width;
    using T = UpcastType<Stored>;
    struct Value {
        T mean, scale, mean_dy, slope, shift;
    };
    struct Values {
        Pack<Stored, width> x, dy;
    };
    std::int64_t channels;
    double eps;
    const Stored* x;
    const Stored* dy;
    const T* stats;
    const T* weight;
    const T* sums;
    const T* bias;
    bool relu;
    Stored* dx;

    LOCKSTEP_HD_INLINE Value value(std::int64_t c) const {
        const T count = stats[2 * channels];
        const T deviation = element::inverse_deviation(stats[channels + c], count, eps);
        return {stats[c], element::or_else(weight, c, T(1)) * deviation, element::or_else(sums, c, T(0)) / count,
                deviation * element::or_else(sums, channels + c, T(0)) / count,
                relu ? element::or_else(bias, c, T(0)) : T(0)};
    }
    LOCKSTEP_HD_INLINE Values load(std::int64_t pack) const {
        return {load_pack<width>(x + pack * width), load_pack<width>(dy + pack * width)};
    }
    LOCKSTEP_HD_INLINE void store(std::int64_t pack, const Values& in, const Value (&of)[width]) const {
        Pack<Stored, width> out;
        LOCKSTEP_UNROLL
        for (int i = 0; i < width; ++i) {
            const T input = upcast(in.x.of[i]);
            T gradient = upcast(in.dy.of[i]);
            if (relu) gradient = through_relu<Stored>(gradient, input, of[i].mean, of[i].scale, of[i].shift);
            out.of[i] = CastTo<Stored>::from(
                element::normalize_backward(input, gradient, of[i].mean, of[i].scale, of[i].mean_dy, of[i].slope));
        }
        store_pack(dx + pack * width, out);
    }
};

/// Enqueues make(width), a functor of launch_columns, with the widest packs into which images can be cut. `addresses`:
/// those of images.
template <class Stored, class Make, class... Address>
void launch_channels(const Queue& queue, const char* name, const Images& x, const Make& make,
                     const Address*... addresses) {
    constexpr int wide = widest<Stored>;
    const auto run = [&](auto width) {
        const ChannelColumns columns(x, width);
        const auto f = make(width);
        launch(queue, name, columns.threads, OnChannelColumns<decltype(make(width))>{columns, f});
    };
    const std::integral_constant<int, wide> widest_packs;
    const bool aligned = are_aligned<wide>(addresses...);
    if (aligned && x.channels_last && x.c % wide == 0)
        launch_columns(queue, name, ColumnTiles(1, x.n * x.h * x.w, x.c / wide), make(widest_packs));
    else if (aligned && !x.channels_last && x.h * x.w % wide == 0)
        run(widest_packs);
    else
        run(std::integral_constant<int, 1>());
}

KernelPtr make_batch_norm_stats(const BatchNormStats& op, KernelRequest& request) {
    const Images x = want_images(request, 0);
    return visit_any_float(op.name, request.in[0].dtype, [&](auto zero) {
        using Stored = decltype(zero);
        using T = UpcastType<Stored>;
        return with_channel_packs<Stored>(x, [&](auto width, auto across, const ChannelPacks& packs) {
            using Stats = ChannelStats<Stored, width, across>;
            return make_cuda_kernel(
                request,
                [packs](const Queue& queue, const KernelArgs& v) {
                    reduce(
                        queue, "batch_norm_stats", packs.plan,
                        Stats{{packs.layout, packed_input<decltype(width)::value>(v.input<Stored>(0))}, v.output<T>(0)},
                        v.scratch);
                },
                packs.plan.template scratch_bytes<Stats>());
        });
    });
}

KernelPtr make_batch_norm_normalize(const BatchNormNormalize& op, KernelRequest& request) {
    const Images x = want_images(request, 0);
    for (std::size_t i = 1; i < request.in.size(); ++i) request.want_contiguous(i);
    set_layout_like(request.out[0], request.in[0]);
    return visit_any_float(op.name(), request.in[0].dtype, [&](auto zero) {
        using Stored = decltype(zero);
        using T = UpcastType<Stored>;
        const bool relu = op.activation == Activation::relu;
        return make_cuda_kernel(request, [x, eps = op.eps, relu](const Queue& queue, const KernelArgs& v) {
            const auto make = [&](auto width) {
                return Normalize<Stored, decltype(width)::value>{
                    x.c,           eps,  v.input<Stored>(0), v.input<T>(1), v.input<T>(2),
                    v.input<T>(3), relu, v.output<Stored>(0)};
            };
            launch_channels<Stored>(queue, "batch_norm_normalize", x, make, v.input<Stored>(0), v.output<Stored>(0));
        });
    });
}

template <bool relu>
KernelPtr backward_sums(const BatchNormBackwardSums& op, KernelRequest& request, const Images& x) {
    return visit_any_float(op.name(), request.in[0].dtype, [&](auto zero) {
        using Stored = decltype(zero);
        using T = UpcastType<Stored>;
        return with_channel_packs<Stored>(x, [&](auto width, auto across, const ChannelPacks& packs) {
            using Sums = BackwardSums<Stored, width, across, relu>;
            return make_cuda_kernel(
                request,
                [packs, eps = op.eps](const Queue& queue, const KernelArgs& v) {
                    constexpr int wide = decltype(width)::value;
                    reduce(queue, "batch_norm_backward_sums", packs.plan,
                           Sums{packs.layout, eps, packed_input<wide>(v.input<Stored>(0)),
                                packed_input<wide>(v.input<Stored>(1)), Sums::packed_stats(v.input<T>(2)),
                                relu ? v.input<T>(3) : nullptr, relu ? v.input<T>(4) : nullptr, v.output<T>(0),
                                v.output<T>(1), v.output<T>(2)},
                           v.scratch);
                },
                packs.plan.template scratch_bytes<Sums>());
        });
    });
}

KernelPtr make_batch_norm_backward_sums(const BatchNormBackwardSums& op, KernelRequest& request) {
    const Images x = want_images(request, 0);
    want_like(request, 1, request.in[0]);
    for (std::size_t i = 2; i < request.in.size(); ++i) request.want_contiguous(i);
    return op.activation == Activation::relu ? backward_sums<true>(op, request, x)
                                             : backward_sums<false>(op, request, x);
}

KernelPtr make_batch_norm_backward_data(const BatchNormBackwardData& op, KernelRequest& request) {
    const Images x = want_images(request, 0);
    want_like(request, 1, request.in[0]);
    for (std::size_t i = 2; i < request.in.size(); ++i) request.want_contiguous(i);
    set_layout_like(request.out[0], request.in[0]);
    return visit_any_float(op.name(), request.in[0].dtype, [&](auto zero) {
        using Stored = decltype(zero);
        using T = UpcastType<Stored>;
        const bool relu = op.activation == Activation::relu;
        return make_cuda_kernel(request, [x, eps = op.eps, relu](const Queue& queue, const KernelArgs& v) {
            const auto make = [&](auto width) {
                return NormalizeBackward<Stored, decltype(width)::value>{x.c,
                                                                         eps,
                                                                         v.input<Stored>(0),
                                                                         v.input<Stored>(1),
                                                                         v.input<T>(2),
                                                                         v.input<T>(3),
                                                                         v.input<T>(4),
                                                                         relu ? v.input<T>(5) : nullptr,
                                                                         relu,
                                                                         v.output<Stored>(0)};
            };
            launch_channels<Stored>(queue, "batch_norm_backward_data", x, make, v.input<Stored>(0), v.input<Stored>(1),
                                    v.output<Stored>(0));
        });
    });
}

}  // namespace

void add_batch_norm_kernels(KernelTable& table) {
    table.add<BatchNormStats, make_batch_norm_stats>();
    table.add<BatchNormNormalize, make_batch_norm_normalize>();
    table.add<BatchNormBackwardSums, make_batch_norm_backward_sums>();
    table.add<BatchNormBackwardData, make_batch_norm_backward_data>();
    table.add_half_types<BatchNormStats, make_for_half_images<BatchNormStats, make_batch_norm_stats>>();
    table.add_half_types<BatchNormNormalize, make_for_half_images<BatchNormNormalize, make_batch_norm_normalize>>();
    table.add_half_types<BatchNormBackwardSums,
                         make_for_half_images<BatchNormBackwardSums, make_batch_norm_backward_sums>>();
    table.add_half_types<BatchNormBackwardData,
                         make_for_half_images<BatchNormBackwardData, make_batch_norm_backward_data>>();
}

}  // namespace lockstep::cuda
