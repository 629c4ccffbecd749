// Batch normalisation over (N, H, W), on plain and on blocked activations. For 16-bit activations, statistics, weights
// and sums are f32. The loops process a block of channels at once: lane j holds channel j % width of the block.
#include <algorithm>
#include <cmath>

#include "lockstep/ops/cpu/half_types.h"
#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/lane_loops.h"
#include "lockstep/ops/cpu/layout.h"
#include "lockstep/ops/cpu/loops.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/ops/internal/arithmetic.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/internal/shard_tree.h"

namespace lockstep::cpu {
namespace {

/// A sum per lane.
struct LaneSums {
    double total[lanes] = {};

    /// The sum of channel `c` of the block.
    double channel(int c, int width) const {
        double sum = 0;
        for (int j = c; j < lanes; j += width) sum += total[j];
        return sum;
    }
};

/// A value per lane; missing channels get 0, which keeps their padding 0.
template <class T>
struct Lanes {
    T value[lanes];

    template <class Value>
    Lanes(const Planes& planes, std::int64_t block, const Value& value_of) {
        for (int j = 0; j < lanes; ++j) {
            const std::int64_t channel = block * planes.width + j % planes.width;
            value[j] = channel < planes.channels ? static_cast<T>(value_of(channel)) : T(0);
        }
    }
};

/// Calls work(block) for every block of channels, in parallel.
template <class Work>
void for_blocks(const Planes& planes, int threads, const Work& work) {
    for_parts(threads, planes.blocks, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t block = begin; block < end; ++block) work(block);
    });
}

/// Calls work(first element of the plane) for all planes of a block.
template <class Work>
void for_planes(const Planes& planes, std::int64_t block, const Work& work) {
    for (std::int64_t n = 0; n < planes.n; ++n) work((n * planes.blocks + block) * planes.plane());
}

// ---- statistics -------------------------------------------------------------------------------------------------

std::unique_ptr<Kernel> make_stats(const BatchNormStats& operation, KernelRequest& request) {
    const Planes planes = want_planes(request, 0);
    require_contiguous_output(operation, request, 0);
    return for_stored(operation, request.in[0].dtype, [&](auto stored) {
        using Stored = decltype(stored);
        using T = Arithmetic<Stored>;
        return make_kernel([planes, threads = request.threads](const KernelArgs& call) {
            const Stored* x = call.input<Stored>(0);
            T* stats = call.output<T>(0);
            const auto count = static_cast<double>(planes.n * planes.spatial());
            stats[2 * planes.channels] = static_cast<T>(count);
            for_blocks(planes, threads, [&](std::int64_t block) {
                const std::int64_t first = block * planes.width;
                const int channels = static_cast<int>(std::min<std::int64_t>(planes.width, planes.channels - first));
                LaneSums sum, deviation;
                for_planes(planes, block,
                           [&](std::int64_t at) { LaneLoops<Stored>::sum(x + at, planes.plane(), sum.total); });
                for (int c = 0; c < channels; ++c)
                    stats[first + c] = static_cast<T>(count > 0 ? sum.channel(c, planes.width) / count : 0);
                const Lanes<T> mean(planes, block, [&](std::int64_t channel) { return stats[channel]; });
                for_planes(planes, block, [&](std::int64_t at) {
                    LaneLoops<Stored>::deviation(x + at, mean.value, planes.plane(), deviation.total);
                });
                for (int c = 0; c < channels; ++c)
                    stats[planes.channels + first + c] = static_cast<T>(deviation.channel(c, planes.width));
            });
        });
    });
}

/// Numbers of channels of the layers whose statistics (2C + 1) are the inputs.
std::vector<std::int64_t> channels_of_layers(const KernelRequest& request) {
    std::vector<std::int64_t> channels;
    for (const TensorMeta& stats : request.in) channels.push_back(stats.numel() / 2);
    return channels;
}

std::unique_ptr<Kernel> make_pool_stats(const BatchNormPoolStats& operation, KernelRequest& request) {
    request.want_all_contiguous();
    const std::vector<std::int64_t> channels_of = channels_of_layers(request);
    for (std::size_t layer = 0; layer < channels_of.size(); ++layer)
        require_contiguous_output(operation, request, layer);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        using Moments = element::Moments<T>;
        return make_kernel([channels_of, first_only = operation.first_only](const KernelArgs& call) {
            const int layers = static_cast<int>(channels_of.size());
            for (int layer = 0; layer < layers; ++layer) {
                const std::int64_t channels = channels_of[static_cast<std::size_t>(layer)];
                T* pooled = call.output<T>(layer);
                Moments all;
                for (std::int64_t c = 0; c < channels; ++c) {
                    all = combine_shards<Moments>(
                        first_only ? 1 : call.shards,
                        [&](int shard) {
                            const T* stats = call.input<T>(shard * layers + layer);
                            return Moments{stats[2 * channels], stats[c], stats[channels + c]};
                        },
                        [](const Moments& a, const Moments& b) { return element::pool(a, b); });
                    pooled[c] = all.mean;
                    pooled[channels + c] = all.m2;
                }
                pooled[2 * channels] = all.count;
            }
        });
    });
}

// ---- forward ----------------------------------------------------------------------------------------------------

/// Values that the elementwise passes need from the statistics of a channel (2C + 1).
template <class T>
struct ChannelStats {
    const T* stats;
    std::int64_t channels;
    double eps;

    T count() const { return stats[2 * channels]; }
    T mean(std::int64_t c) const { return stats[c]; }
    T inverse_deviation(std::int64_t c) const { return element::inverse_deviation(stats[channels + c], count(), eps); }
};

std::unique_ptr<Kernel> make_normalize(const BatchNormNormalize& operation, KernelRequest& request) {
    const Planes planes = want_planes(request, 0);
    for (std::size_t i = 1; i < request.in.size(); ++i) request.want_contiguous(i);
    set_layout_like(request.out[0], request.in[0]);
    return for_stored(operation, request.in[0].dtype, [&](auto stored) {
        using Stored = decltype(stored);
        using T = Arithmetic<Stored>;
        return make_kernel([planes, eps = operation.eps, relu = operation.activation == Activation::relu,
                            threads = request.threads](const KernelArgs& call) {
            const ChannelStats<T> stats{call.input<T>(1), planes.channels, eps};
            const T *weight = call.input<T>(2), *bias = call.input<T>(3);
            const Stored* x = call.input<Stored>(0);
            Stored* y = call.output<Stored>(0);
            for_blocks(planes, threads, [&](std::int64_t block) {
                const Lanes<T> mean(planes, block, [&](std::int64_t c) { return stats.mean(c); });
                const Lanes<T> scale(planes, block, [&](std::int64_t c) {
                    return element::or_else(weight, c, T(1)) * stats.inverse_deviation(c);
                });
                const Lanes<T> shift(planes, block, [&](std::int64_t c) { return element::or_else(bias, c, T(0)); });
                for_planes(planes, block, [&](std::int64_t at) {
                    LaneLoops<Stored>::normalize(x + at, mean.value, scale.value, shift.value, relu, y + at,
                                                 planes.plane());
                });
            });
        });
    });
}

// ---- backward ---------------------------------------------------------------------------------------------------

/// ReLU's gradient belongs to the record that makes dy.
template <class Op>
bool has_no_activation(const Op& operation) {
    return operation.activation == Activation::none;
}

std::unique_ptr<Kernel> make_backward_sums(const BatchNormBackwardSums& operation, KernelRequest& request) {
    const Planes planes = want_planes(request, 0);
    set_layout_like(request.in[1], request.in[0]);
    request.want_contiguous(2);
    for (std::size_t i = 0; i < request.out.size(); ++i) require_contiguous_output(operation, request, i);
    return for_stored(operation, request.in[0].dtype, [&](auto stored) {
        using Stored = decltype(stored);
        using T = Arithmetic<Stored>;
        return make_kernel([planes, eps = operation.eps, threads = request.threads](const KernelArgs& call) {
            const ChannelStats<T> stats{call.input<T>(2), planes.channels, eps};
            const Stored *x = call.input<Stored>(0), *dy = call.input<Stored>(1);
            T *sums = call.output<T>(0), *dbias = call.output<T>(1), *dweight = call.output<T>(2);
            for_blocks(planes, threads, [&](std::int64_t block) {
                const Lanes<T> mean(planes, block, [&](std::int64_t c) { return stats.mean(c); });
                LaneSums gradient, product;
                for_planes(planes, block, [&](std::int64_t at) {
                    LaneLoops<Stored>::backward_sums(x + at, dy + at, mean.value, planes.plane(), gradient.total,
                                                     product.total);
                });
                const std::int64_t first = block * planes.width;
                const int channels = static_cast<int>(std::min<std::int64_t>(planes.width, planes.channels - first));
                for (int c = 0; c < channels; ++c) {
                    const auto of_bias = static_cast<T>(gradient.channel(c, planes.width));
                    const auto of_weight = static_cast<T>(product.channel(c, planes.width) *
                                                          static_cast<double>(stats.inverse_deviation(first + c)));
                    sums[first + c] = of_bias;
                    sums[planes.channels + first + c] = of_weight;
                    if (dbias) dbias[first + c] = of_bias;
                    if (dweight) dweight[first + c] = of_weight;
                }
            });
        });
    });
}

std::unique_ptr<Kernel> make_backward_data(const BatchNormBackwardData& operation, KernelRequest& request) {
    const Planes planes = want_planes(request, 0);
    set_layout_like(request.in[1], request.in[0]);
    for (std::size_t i = 2; i < request.in.size(); ++i) request.want_contiguous(i);
    set_layout_like(request.out[0], request.in[0]);
    return for_stored(operation, request.in[0].dtype, [&](auto stored) {
        using Stored = decltype(stored);
        using T = Arithmetic<Stored>;
        return make_kernel([planes, eps = operation.eps, threads = request.threads](const KernelArgs& call) {
            const ChannelStats<T> stats{call.input<T>(2), planes.channels, eps};
            const Stored *x = call.input<Stored>(0), *dy = call.input<Stored>(1);
            const T *weight = call.input<T>(3), *sums = call.input<T>(4);
            Stored* dx = call.output<Stored>(0);
            for_blocks(planes, threads, [&](std::int64_t block) {
                const Lanes<T> mean(planes, block, [&](std::int64_t c) { return stats.mean(c); });
                const Lanes<T> scale(planes, block, [&](std::int64_t c) {
                    return element::or_else(weight, c, T(1)) * stats.inverse_deviation(c);
                });
                const Lanes<T> mean_dy(planes, block,
                                       [&](std::int64_t c) { return element::or_else(sums, c, T(0)) / stats.count(); });
                const Lanes<T> slope(planes, block, [&](std::int64_t c) {
                    return stats.inverse_deviation(c) * element::or_else(sums, planes.channels + c, T(0)) /
                           stats.count();
                });
                for_planes(planes, block, [&](std::int64_t at) {
                    LaneLoops<Stored>::backward_data(x + at, dy + at, mean.value, scale.value, mean_dy.value,
                                                     slope.value, dx + at, planes.plane());
                });
            });
        });
    });
}

// ---- running statistics -----------------------------------------------------------------------------------------

std::unique_ptr<Kernel> make_update_running(const BatchNormUpdateRunning& operation, KernelRequest& request) {
    request.want_all_contiguous();
    for (std::size_t output = 0; output < request.out.size(); ++output)
        require_contiguous_output(operation, request, output);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel(
            [channels_of = channels_of_layers(request), momentum = operation.momentum](const KernelArgs& call) {
                if (call.agreed->code != 0) return;
                for (int layer = 0; layer < static_cast<int>(channels_of.size()); ++layer) {
                    const std::int64_t channels = channels_of[static_cast<std::size_t>(layer)];
                    const T* stats = call.input<T>(layer);
                    T *mean = call.output<T>(2 * layer), *variance = call.output<T>(2 * layer + 1);
                    for (std::int64_t c = 0; c < channels; ++c) {
                        mean[c] = element::update_running(mean[c], stats[c], momentum);
                        const T unbiased = stats[channels + c] / (stats[2 * channels] - T(1));
                        variance[c] = element::update_running(variance[c], unbiased, momentum);
                    }
                }
            });
    });
}

}  // namespace

void add_batch_norm_kernels(KernelTable& table) {
    table.add<BatchNormStats, make_stats>();
    table.add<BatchNormPoolStats, make_pool_stats>();
    table.add<BatchNormNormalize, make_normalize>();
    table.add<BatchNormBackwardSums, make_backward_sums, has_no_activation>();
    table.add<BatchNormBackwardData, make_backward_data, has_no_activation>();
    table.add<BatchNormUpdateRunning, make_update_running>();
    table.add_half_types<BatchNormStats, make_for_half_images<BatchNormStats, make_stats>>();
    table.add_half_types<BatchNormNormalize, make_for_half_images<BatchNormNormalize, make_normalize>>();
    table.add_half_types<BatchNormBackwardSums, make_for_half_images<BatchNormBackwardSums, make_backward_sums>>();
    table.add_half_types<BatchNormBackwardData, make_for_half_images<BatchNormBackwardData, make_backward_data>>();
}

}  // namespace lockstep::cpu
