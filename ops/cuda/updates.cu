// What changes lasting state, and what is combined over shards.
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/internal/arithmetic.h"
#include "lockstep/ops/internal/normalization_operations.h"
#include "lockstep/ops/internal/shard_operations.h"
#include "lockstep/runtime/internal/shard_tree.h"

namespace lockstep::cuda {

namespace {

struct IncrementElement {
    const StatusWord* agreed;
    std::int64_t* counter;

    LOCKSTEP_ELEMENT void operator()(std::int64_t) const {
        if (is_good(agreed)) ++*counter;
    }
};

// ---- over shards ------------------------------------------------------------------------------------------------

/// Pointers travel as kernel arguments, so many at once. More shards take two levels: groups of a power of two are
/// branches of the tree, and what they come to is combined along the same tree.
constexpr int group = 64;

template <class T>
struct Group {
    const T* of[group];
    int size;
};

template <class T>
struct SumShards {
    Group<T> shards;
    T* out;

    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        out[i] = combine_shards<T>(
            shards.size, [&](int s) { return shards.of[s][i]; }, [](T a, T b) { return a + b; });
    }
};

template <class T>
struct PoolShards {
    Group<T> shards;
    T* out;
    std::int64_t channels;

    LOCKSTEP_ELEMENT void operator()(std::int64_t c) const {
        const auto pooled = combine_shards<element::Moments<T>>(
            shards.size,
            [&](int s) {
                const T* stats = shards.of[s];
                return element::Moments<T>{stats[2 * channels], stats[c], stats[channels + c]};
            },
            [](const element::Moments<T>& a, const element::Moments<T>& b) { return element::pool(a, b); });
        out[c] = pooled.mean;
        out[channels + c] = pooled.m2;
        if (c == 0) out[2 * channels] = pooled.count;
    }
};

int groups_of(int shards) { return (shards + group - 1) / group; }

/// Scratch for tensors of `elements` elements over at most `shards` shards.
template <class T>
std::size_t group_bytes(std::string_view name, int shards, std::int64_t elements) {
    require_at_most(name, "shards", static_cast<std::size_t>(shards), std::size_t{group * group});
    return shards <= group ? 0 : static_cast<std::size_t>(groups_of(shards) * elements) * sizeof(T);
}

/// Enqueues `threads` threads of make(Group<T>, T* out) for every group. `input(s)`: tensor of shard s.
template <class T, class Input, class Make>
void combine_levels(const Queue& queue, const char* name, std::int64_t threads, std::int64_t elements, int shards,
                    Input input, T* out, T* scratch, Make make) {
    const int groups = groups_of(shards);
    Group<T> top{};
    top.size = groups;
    for (int g = 0; g < groups; ++g) {
        Group<T> members{};
        members.size = std::min(group, shards - g * group);
        for (int s = 0; s < members.size; ++s) members.of[s] = input(g * group + s);
        T* target = groups == 1 ? out : scratch + g * elements;
        top.of[g] = target;
        launch(queue, name, threads, make(members, target));
    }
    if (groups > 1) launch(queue, name, threads, make(top, out));
}

KernelPtr make_increment_counter(const IncrementCounter& /*op*/, KernelRequest& request) {
    return make_cuda_kernel(request, [](const Queue& queue, const KernelArgs& v) {
        launch(queue, "increment_counter", 1, IncrementElement{v.agreed, v.output<std::int64_t>(0)});
    });
}

KernelPtr make_sum_over_shards(const SumOverShards& op, KernelRequest& request) {
    request.want_all_contiguous();
    std::vector<std::int64_t> elements;
    for (const TensorMeta& in : request.in) elements.push_back(in.numel());
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        std::size_t scratch = 0;
        for (const std::int64_t count : elements)
            scratch = std::max(scratch, group_bytes<T>(op.name, request.shards, count));
        return make_cuda_kernel(
            request,
            [elements](const Queue& queue, const KernelArgs& v) {
                const std::size_t tensors = elements.size();
                for (std::size_t t = 0; t < tensors; ++t)
                    combine_levels<T>(
                        queue, "sum_over_shards", elements[t], elements[t], v.shards,
                        [&](int s) { return v.input<T>(static_cast<int>(static_cast<std::size_t>(s) * tensors + t)); },
                        v.output<T>(static_cast<int>(t)), static_cast<T*>(v.scratch),
                        [](const Group<T>& shards, T* out) {
                            return SumShards<T>{shards, out};
                        });
            },
            scratch, Reach::all_shards);
    });
}

KernelPtr make_batch_norm_pool_stats(const BatchNormPoolStats& op, KernelRequest& request) {
    request.want_all_contiguous();
    const std::int64_t elements = request.in[0].numel();
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(
            request,
            [elements, first_only = op.first_only](const Queue& queue, const KernelArgs& v) {
                const std::int64_t channels = (elements - 1) / 2;
                combine_levels<T>(
                    queue, "batch_norm_pool_stats", channels, elements, first_only ? 1 : v.shards,
                    [&](int s) { return v.input<T>(s); }, v.output<T>(0), static_cast<T*>(v.scratch),
                    [channels](const Group<T>& shards, T* out) {
                        return PoolShards<T>{shards, out, channels};
                    });
            },
            group_bytes<T>(op.name, request.shards, elements), Reach::all_shards);
    });
}

}  // namespace

void add_update_kernels(KernelTable& table) {
    table.add<IncrementCounter, make_increment_counter>();
    table.add<SumOverShards, make_sum_over_shards>();
    table.add<BatchNormPoolStats, make_batch_norm_pool_stats>();
}

}  // namespace lockstep::cuda
