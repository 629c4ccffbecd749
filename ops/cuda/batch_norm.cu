// Batch normalisation over (N, H, W), in either dense layout of images.
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/layout.h"
#include "lockstep/ops/cuda/reduce.h"
#include "lockstep/ops/internal/normalization_operations.h"

namespace lockstep::cuda {

namespace {

/// Where element k = (n, h, w) of a channel lies, and which channel an element belongs to.
struct ChannelIndex {
    std::int64_t channels, pixels;  // C, H*W
    bool channels_last;

    LOCKSTEP_ELEMENT std::int64_t of(std::int64_t channel, std::int64_t k) const {
        if (channels_last) return k * channels + channel;
        return (k / pixels * channels + channel) * pixels + k % pixels;
    }
    LOCKSTEP_ELEMENT std::int64_t channel(std::int64_t i) const {
        return channels_last ? i % channels : i / pixels % channels;
    }
};

ChannelIndex index_of(const Images& x) { return {x.c, x.h * x.w, x.channels_last}; }
std::int64_t values_per_channel(const Images& x) { return x.n * x.h * x.w; }

template <class T>
struct ChannelMoments {
    // Sums of differences from the channel's first element: no digits are lost where the mean is large.
    struct Value {
        double sum, squares;
    };
    ChannelIndex index;
    std::int64_t count;
    const T* x;
    T* stats;

    LOCKSTEP_ELEMENT Value zero() const { return {0, 0}; }
    LOCKSTEP_ELEMENT double origin(std::int64_t channel) const { return static_cast<double>(x[index.of(channel, 0)]); }
    LOCKSTEP_ELEMENT void add(Value& value, std::int64_t channel, std::int64_t k) const {
        const double difference = static_cast<double>(x[index.of(channel, k)]) - origin(channel);
        value.sum += difference;
        value.squares += difference * difference;
    }
    LOCKSTEP_ELEMENT void join(Value& value, const Value& other) const {
        value.sum += other.sum;
        value.squares += other.squares;
    }
    LOCKSTEP_ELEMENT void finish(std::int64_t channel, const Value& value) const {
        const double mean = value.sum / static_cast<double>(count);
        const double m2 = value.squares - value.sum * mean;
        stats[channel] = static_cast<T>(origin(channel) + mean);
        stats[index.channels + channel] = static_cast<T>(m2 > 0 || m2 != m2 ? m2 : 0);
        if (channel == 0) stats[2 * index.channels] = static_cast<T>(count);
    }
};

template <class T>
struct NormalizeElement {
    ChannelIndex index;
    double eps;
    const T* x;
    const T* stats;
    const T* weight;
    const T* bias;
    T* y;

    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        const std::int64_t c = index.channel(i);
        const T deviation = element::inverse_deviation(stats[index.channels + c], stats[2 * index.channels], eps);
        y[i] = element::normalize(x[i], stats[c], static_cast<T>(element::or_else(weight, c, T(1)) * deviation),
                                  element::or_else(bias, c, T(0)));
    }
};

template <class T>
struct BackwardSums {
    struct Value {
        double dy, dy_xhat;
    };
    ChannelIndex index;
    double eps;
    const T* x;
    const T* dy;
    const T* stats;
    T* sums;

    LOCKSTEP_ELEMENT Value zero() const { return {0, 0}; }
    LOCKSTEP_ELEMENT void add(Value& value, std::int64_t channel, std::int64_t k) const {
        const std::int64_t at = index.of(channel, k);
        const auto d = static_cast<double>(dy[at]);
        value.dy += d;
        value.dy_xhat += d * static_cast<double>(x[at] - stats[channel]);
    }
    LOCKSTEP_ELEMENT void join(Value& value, const Value& other) const {
        value.dy += other.dy;
        value.dy_xhat += other.dy_xhat;
    }
    LOCKSTEP_ELEMENT void finish(std::int64_t channel, const Value& value) const {
        const T deviation = element::inverse_deviation(stats[index.channels + channel], stats[2 * index.channels], eps);
        sums[channel] = static_cast<T>(value.dy);
        sums[index.channels + channel] = static_cast<T>(value.dy_xhat * static_cast<double>(deviation));
    }
};

template <class T>
struct BackwardElement {
    ChannelIndex index;
    double eps;
    const T* x;
    const T* dy;
    const T* stats;
    const T* weight;
    const T* sums;
    T* dx;

    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        const std::int64_t c = index.channel(i);
        const T count = stats[2 * index.channels];
        const T deviation = element::inverse_deviation(stats[index.channels + c], count, eps);
        dx[i] = element::normalize_backward(
            x[i], dy[i], stats[c], static_cast<T>(element::or_else(weight, c, T(1)) * deviation),
            static_cast<T>(element::or_else(sums, c, T(0)) / count),
            static_cast<T>(deviation * element::or_else(sums, index.channels + c, T(0)) / count));
    }
};

template <class T>
struct UpdateRunningElement {
    std::int64_t channels;
    double momentum;
    const T* stats;
    const StatusWord* agreed;
    T* mean;
    T* variance;

    LOCKSTEP_ELEMENT void operator()(std::int64_t c) const {
        if (agreed != nullptr && agreed->code != 0) return;
        const T unbiased = stats[channels + c] / (stats[2 * channels] - T(1));
        mean[c] = element::update_running(mean[c], stats[c], momentum);
        variance[c] = element::update_running(variance[c], unbiased, momentum);
    }
};

KernelPtr make_batch_norm_stats(const BatchNormStats& op, KernelRequest& request) {
    const Images x = want_images(request, 0);
    const ReducePlan plan = ReducePlan::make(x.c, values_per_channel(x), x.channels_last);
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(
            request,
            [index = index_of(x), count = values_per_channel(x), plan](const Queue& queue, const KernelArgs& v) {
                reduce(queue, "batch_norm_stats", plan, ChannelMoments<T>{index, count, v.input<T>(0), v.output<T>(0)},
                       v.scratch);
            },
            plan.scratch_bytes<ChannelMoments<T>>());
    });
}

KernelPtr make_batch_norm_normalize(const BatchNormNormalize& op, KernelRequest& request) {
    const Images x = want_images(request, 0);
    for (std::size_t i = 1; i < request.in.size(); ++i) request.want_contiguous(i);
    lay_out_like(request.out[0], request.in[0]);
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [index = index_of(x), eps = op.eps, count = request.in[0].numel()](
                                             const Queue& queue, const KernelArgs& v) {
            launch(queue, "batch_norm_normalize", count,
                   NormalizeElement<T>{index, eps, v.input<T>(0), v.input<T>(1), v.input<T>(2), v.input<T>(3),
                                       v.output<T>(0)});
        });
    });
}

KernelPtr make_batch_norm_backward_sums(const BatchNormBackwardSums& op, KernelRequest& request) {
    const Images x = want_images(request, 0);
    want_like(request, 1, request.in[0]);
    request.want_contiguous(2);
    const ReducePlan plan = ReducePlan::make(x.c, values_per_channel(x), x.channels_last);
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(
            request,
            [index = index_of(x), eps = op.eps, plan](const Queue& queue, const KernelArgs& v) {
                reduce(queue, "batch_norm_backward_sums", plan,
                       BackwardSums<T>{index, eps, v.input<T>(0), v.input<T>(1), v.input<T>(2), v.output<T>(0)},
                       v.scratch);
            },
            plan.scratch_bytes<BackwardSums<T>>());
    });
}

KernelPtr make_batch_norm_backward_data(const BatchNormBackwardData& op, KernelRequest& request) {
    const Images x = want_images(request, 0);
    want_like(request, 1, request.in[0]);
    for (std::size_t i = 2; i < request.in.size(); ++i) request.want_contiguous(i);
    lay_out_like(request.out[0], request.in[0]);
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [index = index_of(x), eps = op.eps, count = request.in[0].numel()](
                                             const Queue& queue, const KernelArgs& v) {
            launch(queue, "batch_norm_backward_data", count,
                   BackwardElement<T>{index, eps, v.input<T>(0), v.input<T>(1), v.input<T>(2), v.input<T>(3),
                                      v.input<T>(4), v.output<T>(0)});
        });
    });
}

KernelPtr make_batch_norm_update_running(const BatchNormUpdateRunning& op, KernelRequest& request) {
    request.want_contiguous(0);
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        const std::int64_t channels = (request.in[0].numel() - 1) / 2;
        return make_cuda_kernel(request, [channels, momentum = op.momentum](const Queue& queue, const KernelArgs& v) {
            launch(
                queue, "batch_norm_update_running", channels,
                UpdateRunningElement<T>{channels, momentum, v.input<T>(0), v.agreed, v.output<T>(0), v.output<T>(1)});
        });
    });
}

}  // namespace

void add_batch_norm_kernels(KernelTable& table) {
    table.add<BatchNormStats, make_batch_norm_stats>();
    table.add<BatchNormNormalize, make_batch_norm_normalize>();
    table.add<BatchNormBackwardSums, make_batch_norm_backward_sums>();
    table.add<BatchNormBackwardData, make_batch_norm_backward_data>();
    table.add<BatchNormUpdateRunning, make_batch_norm_update_running>();
}

}  // namespace lockstep::cuda
