// Sums over shards.
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/shard_sums.h"
#include "lockstep/ops/internal/arithmetic.h"
#include "lockstep/ops/internal/control_operations.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep::cuda {

namespace {

/// Scratch for tensors of `elements` elements over at most `shards` shards.
template <class T>
std::size_t group_bytes(std::string_view name, int shards, std::int64_t elements) {
    require_at_most(name, "shards", static_cast<std::size_t>(shards), std::size_t{group * group});
    return shards <= group ? 0 : static_cast<std::size_t>(ceil_div(shards, group) * elements) * sizeof(T);
}

/// Calls enqueue(Group<T>, T* out) for every group. `input(s)`: tensor of shard s.
template <class T, class Input, class Enqueue>
void combine_levels(std::int64_t elements, int shards, Input input, T* out, T* scratch, Enqueue enqueue) {
    const int groups = ceil_div(shards, group);
    Group<T> top{};
    top.size = groups;
    for (int g = 0; g < groups; ++g) {
        Group<T> members{};
        members.size = std::min(group, shards - g * group);
        for (int s = 0; s < members.size; ++s) members.of[s] = input(g * group + s);
        T* target = groups == 1 ? out : scratch + g * elements;
        top.of[g] = target;
        enqueue(members, target);
    }
    if (groups > 1) enqueue(top, out);
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
                        elements[t], v.shards,
                        [&](int s) { return v.input<T>(static_cast<int>(static_cast<std::size_t>(s) * tensors + t)); },
                        v.output<T>(static_cast<int>(t)), static_cast<T*>(v.scratch),
                        [&](const Group<T>& shards, T* out) {
                            sum_tensors(queue, "sum_over_shards", shards, out, elements[t]);
                        });
            },
            scratch, OperationScope::all_shards);
    });
}

}  // namespace

void add_update_kernels(KernelTable& table) { table.add<SumOverShards, make_sum_over_shards>(); }

}  // namespace lockstep::cuda
