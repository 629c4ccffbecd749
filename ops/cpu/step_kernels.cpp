// Kernels of ops/internal/control_operations.h.
#include "lockstep/ops/internal/control_operations.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/loops.h"
#include "lockstep/ops/internal/gradient_arithmetic.h"
#include "lockstep/runtime/internal/core_operations.h"
#include "lockstep/runtime/internal/shard_tree.h"

namespace lockstep::cpu {

namespace {

using Index = std::ptrdiff_t;
/// Number of elements summed at a time: the partial sums of all levels of the tree fit the L1 cache.
constexpr Index tree_chunk = 4096;

/// Adds parts along the tree, a chunk at a time.
template <class T>
class TreeAdder {
public:
    TreeAdder(const std::vector<std::pair<int, int>>& ranges, void* const* parts) : ranges_(ranges), parts_(parts) {}

    /// The sum of shards [lo, hi), elements [first, first + count); in `memory` or in place of a part.
    const T* sum(std::size_t part, int lo, int hi, Index first, Index count, T* memory, std::size_t* next) {
        if (ranges_[part].first == lo && ranges_[part].second == hi) {
            *next = part + 1;
            return static_cast<const T*>(parts_[part]) + first;
        }
        const int middle = lo + shard_split(hi - lo);
        std::size_t right_part = 0;
        const T* left = sum(part, lo, middle, first, count, memory, &right_part);
        const T* right = sum(right_part, middle, hi, first, count, memory + tree_chunk, next);
        binary_loops<T, functor::Add>()[0](left, right, memory, count);
        return memory;
    }

private:
    const std::vector<std::pair<int, int>>& ranges_;
    void* const* parts_;
};

template <class T>
std::unique_ptr<Kernel> tree_sum(const TreeSum& op, const KernelRequest& request) {
    const Index elements = request.in[0].numel();
    // One chunk for every level of the tree; shard numbers are below 2^16.
    constexpr std::size_t levels = 17;
    return make_kernel(
        [ranges = op.ranges, accumulate = op.accumulate, commits = op.commits(), elements](const KernelArgs& run) {
            if (commits && run.agreed->code != 0) return;
            TreeAdder<T> adder(ranges, run.in);
            T* partial = static_cast<T*>(run.scratch);
            for (Index first = 0; first < elements; first += tree_chunk) {
                const Index count = std::min(tree_chunk, elements - first);
                std::size_t next = 0;
                const T* sum = adder.sum(0, ranges.front().first, ranges.back().second, first, count, partial, &next);
                T* out = run.output<T>(0) + first;
                if (accumulate)
                    binary_loops<T, functor::Add>()[0](out, sum, out, count);
                else if (sum != out)
                    std::copy_n(sum, count, out);
            }
        },
        levels * tree_chunk * sizeof(T));
}

std::unique_ptr<Kernel> make_tree_sum(const TreeSum& op, KernelRequest& request) {
    request.want_all_contiguous();
    require_contiguous_output(op, request, 0);
    return for_floating(op, request.in[0].dtype, [&](auto zero) { return tree_sum<decltype(zero)>(op, request); });
}

std::unique_ptr<Kernel> make_agree_status(const AgreeStatus&, KernelRequest& request) {
    return make_kernel([shards = request.in.size()](const KernelArgs& run) {
        auto& agreed = *run.output<StatusWord>(0);
        for (std::size_t shard = 0; shard < shards && agreed.code == 0; ++shard)
            agreed = *run.input<StatusWord>(static_cast<int>(shard));
    });
}

std::unique_ptr<Kernel> make_clear_skip_flag(const ClearSkipFlag&, KernelRequest&) {
    return make_kernel([](const KernelArgs& run) { element::clear_skip_flag(*run.output<StatusWord>(0)); });
}

std::unique_ptr<Kernel> make_advance_step(const AdvanceStep& op, KernelRequest&) {
    return make_kernel([op](const KernelArgs& run) {
        if (run.agreed->code == 0) op.apply(*run.output<StepCounters>(0));
    });
}

std::unique_ptr<Kernel> make_commit_if_ok(const CommitIfOk&, KernelRequest& request) {
    request.want_all_contiguous();
    return make_kernel([bytes = request.in[0].bytes()](const KernelArgs& run) {
        if (run.agreed->code == 0) std::memcpy(run.out[0], run.in[0], bytes);
    });
}

}  // namespace

void add_step_kernels(KernelTable& table) {
    table.add<TreeSum, make_tree_sum>();
    table.add<AgreeStatus, make_agree_status>();
    table.add<ClearSkipFlag, make_clear_skip_flag>();
    table.add<AdvanceStep, make_advance_step>();
    table.add<CommitIfOk, make_commit_if_ok>();
    table.add_half_types<CommitIfOk, make_commit_if_ok>();
}

}  // namespace lockstep::cpu
