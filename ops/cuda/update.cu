// Sums over shards.
#include <algorithm>
#include <vector>

#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/segments.h"
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

/// Sums of small tensors.
template <class T>
struct SumSmall {
    Segments tensors;
    int shards;
    const T* in[max_segment_inputs];  ///< the tensors of all shards for a sum, then those for the next sum
    T* out[max_segments];

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const Segments::Place at = tensors.of(i);
        const T* const* const of_shards = in + at.segment * shards;
        out[at.segment][at.element] = combine_group<T>(
            shards, [&](int s) { return of_shards[s][at.element]; }, [](T a, T b) { return a + b; });
    }
};

/// Larger tensors get separate launches, with wide accesses.
constexpr std::int64_t most_of_small = 4096;

KernelPtr make_sum_over_shards(const SumOverShards& op, KernelRequest& request) {
    request.want_all_contiguous();
    std::vector<std::int64_t> elements;
    std::vector<int> small, large;
    for (const TensorMeta& in : request.in) {
        const bool is_small = in.numel() <= most_of_small && request.shards <= group;
        (is_small ? small : large).push_back(static_cast<int>(elements.size()));
        elements.push_back(in.numel());
    }
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        std::size_t scratch = 0;
        for (const std::int64_t count : elements)
            scratch = std::max(scratch, group_bytes<T>(op.name, request.shards, count));
        return make_cuda_kernel(
            request,
            [elements, small, large](const Queue& queue, const KernelArgs& v) {
                const auto tensors = static_cast<int>(elements.size());
                const auto given = [&](int t, int s) { return v.input<T>(s * tensors + t); };
                const auto count = [&](int t) { return elements[static_cast<std::size_t>(t)]; };
                in_parts(small.size(), std::min(max_segments, max_segment_inputs / v.shards),
                         [&](std::size_t first, std::size_t last) {
                             SumSmall<T> all{};
                             all.shards = v.shards;
                             for (std::size_t i = first; i < last; ++i) {
                                 const int place = all.tensors.count, t = small[i];
                                 for (int s = 0; s < v.shards; ++s) all.in[place * v.shards + s] = given(t, s);
                                 all.out[place] = v.output<T>(t);
                                 all.tensors.add(static_cast<int>(count(t)));
                             }
                             launch(queue, "sum_over_shards", all.tensors.total(), all);
                         });
                for (const int t : large)
                    combine_levels<T>(
                        count(t), v.shards, [&](int s) { return given(t, s); }, v.output<T>(t),
                        static_cast<T*>(v.scratch),
                        [&](const Group<T>& shards, T* out) {
                            sum_tensors(queue, "sum_over_shards", shards, out, count(t));
                        });
            },
            scratch, OperationScope::all_shards);
    });
}

}  // namespace

void add_update_kernels(KernelTable& table) { table.add<SumOverShards, make_sum_over_shards>(); }

}  // namespace lockstep::cuda
