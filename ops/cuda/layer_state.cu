// State that layers commit with a step: pooled and running statistics of batch normalisation, and counters. One launch
// serves many layers, because each of them has little work.
#include <algorithm>
#include <vector>

#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/segments.h"
#include "lockstep/ops/cuda/shard_sums.h"
#include "lockstep/ops/internal/arithmetic.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep::cuda {

namespace {

std::vector<int> channels_of_layers(const KernelRequest& request) {
    std::vector<int> channels;
    for (const TensorMeta& stats : request.in) channels.push_back(static_cast<int>(stats.numel() / 2));
    return channels;
}

// ---- counters ---------------------------------------------------------------------------------------------------

struct IncrementCounters {
    const StatusWord* agreed;
    std::int64_t* counters[max_segments];

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        if (is_good(agreed)) ++*counters[i];
    }
};

KernelPtr make_increment_counter(const IncrementCounter& /*op*/, KernelRequest& request) {
    return make_cuda_kernel(request, [layers = request.out.size()](const Queue& queue, const KernelArgs& v) {
        in_parts(layers, max_segments, [&](std::size_t first, std::size_t last) {
            IncrementCounters all{v.agreed, {}};
            for (std::size_t l = first; l < last; ++l)
                all.counters[l - first] = v.output<std::int64_t>(static_cast<int>(l));
            launch(queue, "increment_counter", static_cast<std::int64_t>(last - first), all);
        });
    });
}

// ---- pooled statistics ------------------------------------------------------------------------------------------

/// Pools the statistics of `shards` shards along their tree.
template <class T>
struct PoolLayers {
    Segments channels;
    int shards;
    const T* stats[max_segment_inputs];  ///< inputs of all shards for a layer, then those for the next layer
    T* pooled[max_segments];

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        using Moments = element::Moments<T>;
        const Segments::Place at = channels.of(i);
        const int c = at.element, count = at.size;
        const T* const* of_layer = stats + at.segment * shards;
        const auto all = combine_group<Moments>(
            shards,
            [&](int s) {
                return Moments{of_layer[s][2 * count], of_layer[s][c], of_layer[s][count + c]};
            },
            [](const Moments& a, const Moments& b) { return element::pool(a, b); });
        T* out = pooled[at.segment];
        out[c] = all.mean;
        out[count + c] = all.m2;
        if (c == 0) out[2 * count] = all.count;
    }
};

/// Enqueues the pooling of `shards` tensors for each layer: stats(layer, shard) -> pooled(layer).
template <class T, class Stats, class Pooled>
void pool(const Queue& queue, const std::vector<int>& channels, int shards, Stats stats, Pooled pooled) {
    in_parts(channels.size(), std::min(max_segments, max_segment_inputs / shards),
             [&](std::size_t first, std::size_t last) {
                 PoolLayers<T> all{};
                 all.shards = shards;
                 for (std::size_t l = first; l < last; ++l) {
                     const auto place = static_cast<int>(l - first);
                     all.channels.add(channels[l]);
                     for (int s = 0; s < shards; ++s) all.stats[place * shards + s] = stats(l, s);
                     all.pooled[place] = pooled(l);
                 }
                 launch(queue, "batch_norm_pool_stats", all.channels.total(), all);
             });
}

KernelPtr make_batch_norm_pool_stats(const BatchNormPoolStats& op, KernelRequest& request) {
    request.want_all_contiguous();
    require_at_most(op.name, "shards", static_cast<std::size_t>(request.shards), std::size_t{group * group});
    std::vector<std::int64_t> begins;  // positions of the layers in the results of a group
    std::int64_t elements = 0;
    for (const TensorMeta& stats : request.in) {
        begins.push_back(elements);
        elements += stats.numel();
    }
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        const std::size_t scratch =
            request.shards <= group ? 0
                                    : static_cast<std::size_t>(ceil_div(request.shards, group) * elements) * sizeof(T);
        return make_cuda_kernel(
            request,
            [channels = channels_of_layers(request), begins, elements, first_only = op.first_only](
                const Queue& queue, const KernelArgs& v) {
                const auto layers = static_cast<int>(channels.size());
                const auto given = [&](std::size_t layer, int s) {
                    return v.input<T>(s * layers + static_cast<int>(layer));
                };
                const auto result = [&](std::size_t layer) { return v.output<T>(static_cast<int>(layer)); };
                const int shards = first_only ? 1 : v.shards;
                if (shards <= group) return pool<T>(queue, channels, shards, given, result);
                const int groups = ceil_div(shards, group);
                const auto partial = [&](std::size_t layer, int g) {
                    return static_cast<T*>(v.scratch) + g * elements + begins[layer];
                };
                for (int g = 0; g < groups; ++g)
                    pool<T>(
                        queue, channels, std::min(group, shards - g * group),
                        [&](std::size_t layer, int s) { return given(layer, g * group + s); },
                        [&](std::size_t layer) { return partial(layer, g); });
                pool<T>(queue, channels, groups, partial, result);
            },
            scratch, OperationScope::all_shards);
    });
}

// ---- running statistics -----------------------------------------------------------------------------------------

template <class T>
struct UpdateRunningLayers {
    Segments channels;
    double momentum;
    const StatusWord* agreed;
    const T* stats[max_segments];
    T* mean[max_segments];
    T* variance[max_segments];

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        if (!is_good(agreed)) return;
        const Segments::Place at = channels.of(i);
        const int c = at.element, count = at.size;
        const T* of_layer = stats[at.segment];
        const T unbiased = of_layer[count + c] / (of_layer[2 * count] - T(1));
        T &mean_of_channel = mean[at.segment][c], &variance_of_channel = variance[at.segment][c];
        mean_of_channel = element::update_running(mean_of_channel, of_layer[c], momentum);
        variance_of_channel = element::update_running(variance_of_channel, unbiased, momentum);
    }
};

KernelPtr make_batch_norm_update_running(const BatchNormUpdateRunning& op, KernelRequest& request) {
    request.want_all_contiguous();
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [channels = channels_of_layers(request), momentum = op.momentum](
                                             const Queue& queue, const KernelArgs& v) {
            in_parts(channels.size(), max_segments, [&](std::size_t first, std::size_t last) {
                UpdateRunningLayers<T> all{};
                all.momentum = momentum;
                all.agreed = v.agreed;
                for (std::size_t l = first; l < last; ++l) {
                    const auto layer = static_cast<int>(l);
                    all.channels.add(channels[l]);
                    all.stats[l - first] = v.input<T>(layer);
                    all.mean[l - first] = v.output<T>(2 * layer);
                    all.variance[l - first] = v.output<T>(2 * layer + 1);
                }
                launch(queue, "batch_norm_update_running", all.channels.total(), all);
            });
        });
    });
}

}  // namespace

void add_layer_state_kernels(KernelTable& table) {
    table.add<IncrementCounter, make_increment_counter>();
    table.add<BatchNormPoolStats, make_batch_norm_pool_stats>();
    table.add<BatchNormUpdateRunning, make_batch_norm_update_running>();
}

}  // namespace lockstep::cuda
