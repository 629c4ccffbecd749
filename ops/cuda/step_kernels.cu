// Kernels of a step in addition to the model's own operations: partial sums, agreement, counters.
#include <algorithm>
#include <bit>

#include "lockstep/ops/cuda/chunk.h"
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/shard_sums.h"
#include "lockstep/ops/cuda/unroll.h"
#include "lockstep/ops/internal/arithmetic.h"
#include "lockstep/ops/internal/control_operations.h"
#include "lockstep/ops/internal/gradient_arithmetic.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/core_operations.h"
#include "lockstep/runtime/internal/shard_tree.h"

namespace lockstep::cuda {

namespace {

/// Pointers and numbers are passed as kernel arguments, which are limited to 4 KiB.
constexpr int max_per_launch = 256;

// ---- partial sums -----------------------------------------------------------------------------------------------

/// The tree as a stack machine: part i is pushed, then the top two are added joins[i] times.
struct Joins {
    int parts = 0;
    std::uint8_t of[max_per_launch] = {};
};

/// Appends the node [lo, hi), whose parts begin with number `part`; returns the part after them.
std::size_t plan_node(const std::vector<std::pair<int, int>>& ranges, std::size_t part, int lo, int hi, Joins& joins) {
    if (ranges[part] == std::pair(lo, hi)) return part + 1;
    if (hi - lo < 2) throw InvalidArgument("tree_sum: invalid partial sums; expected nodes of the tree of shards");
    const int middle = lo + shard_split(hi - lo);
    const std::size_t next = plan_node(ranges, plan_node(ranges, part, lo, middle, joins), middle, hi, joins);
    ++joins.of[next - 1];
    return next;
}

/// Whether the tree is that of as many shards as there are parts: part i is followed by as many additions as i has ones
/// at its end, and the last part by the others.
bool is_tree_of_parts(const Joins& joins) {
    if (joins.parts > group) return false;
    for (int i = 0; i + 1 < joins.parts; ++i)
        if (joins.of[i] != std::countr_one(static_cast<unsigned>(i))) return false;
    return true;
}

/// Depth of the stack.
constexpr int levels = 16;

/// Largest number of sums that the stack holds.
std::size_t most_held(const Joins& joins) {
    std::size_t held = 0, most = 0;
    for (int i = 0; i < joins.parts; ++i) {
        most = std::max(most, ++held);
        held -= joins.of[i];
    }
    return most;
}

/// Any other tree.
template <class T>
struct TreeSumElement {
    const T* parts[max_per_launch];
    Joins joins;
    bool accumulate;
    const StatusWord* agreed;
    T* out;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t e) const {
        if (!is_good(agreed)) return;
        T held[levels] = {};  // the stack, with its top first: at constant places, registers hold it
        for (int i = 0; i < joins.parts; ++i) {
            LOCKSTEP_UNROLL
            for (int l = levels - 1; l > 0; --l) held[l] = held[l - 1];
            held[0] = parts[i][e];
            for (int j = 0; j < joins.of[i]; ++j) {
                held[0] = held[1] + held[0];
                LOCKSTEP_UNROLL
                for (int l = 1; l + 1 < levels; ++l) held[l] = held[l + 1];
            }
        }
        out[e] = accumulate ? out[e] + held[0] : held[0];
    }
};

// ---- status and counters ----------------------------------------------------------------------------------------

struct Agree {
    const StatusWord* shards[max_per_launch];
    int count;
    StatusWord* agreed;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t) const {
        for (int s = 0; s < count && agreed->code == 0; ++s)
            if (shards[s]->code != 0) *agreed = *shards[s];
    }
};

struct ClearSkip {
    StatusWord* agreed;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t) const { element::clear_skip_flag(*agreed); }
};

struct Advance {
    const StatusWord* agreed;
    StepCounters* state;
    AdvanceStep op;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t) const {
        if (is_good(agreed)) op.apply(*state);
    }
};

struct CommitChunkIfOk {
    const StatusWord* agreed;
    const std::uint8_t* prepared;
    std::uint8_t* state;
    std::int64_t bytes;
    bool aligned;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        if (!is_good(agreed)) return;
        const std::int64_t first = i * chunk_bytes;
        if (aligned && first + chunk_bytes <= bytes) {
            std::uint8_t chunk[chunk_bytes];
            load_chunk(prepared + first, chunk);
            return store_chunk(chunk, state + first);
        }
        for (std::int64_t b = first; b < bytes && b < first + chunk_bytes; ++b) state[b] = prepared[b];
    }
};

KernelPtr make_tree_sum(const TreeSum& op, KernelRequest& request) {
    request.want_all_contiguous();
    require_at_most(op.name, "partial sums", op.ranges.size(), std::size_t{max_per_launch});
    Joins joins;
    joins.parts = static_cast<int>(op.ranges.size());
    plan_node(op.ranges, 0, op.ranges.front().first, op.ranges.back().second, joins);
    require_at_most(op.name, "levels of partial sums", most_held(joins), std::size_t{levels});
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(
            request, [joins, plain = is_tree_of_parts(joins), accumulate = op.accumulate, commits = op.commits(),
                      elements = request.in[0].numel()](const Queue& queue, const KernelArgs& v) {
                const StatusWord* const agreed = commits ? v.agreed : nullptr;
                if (plain) {
                    Group<T> parts{};
                    parts.size = joins.parts;
                    for (int i = 0; i < joins.parts; ++i) parts.of[i] = v.input<T>(i);
                    return sum_tensors(queue, "tree_sum", parts, v.output<T>(0), elements, accumulate, agreed);
                }
                TreeSumElement<T> element{};
                for (int i = 0; i < joins.parts; ++i) element.parts[i] = v.input<T>(i);
                element.joins = joins;
                element.accumulate = accumulate;
                element.agreed = agreed;
                element.out = v.output<T>(0);
                launch(queue, "tree_sum", elements, element);
            });
    });
}

KernelPtr make_agree_status(const AgreeStatus& /*op*/, KernelRequest& request) {
    return make_cuda_kernel(request,
                            [shards = static_cast<int>(request.in.size())](const Queue& queue, const KernelArgs& v) {
                                for (int first = 0; first == 0 || first < shards; first += max_per_launch) {
                                    Agree agree{};
                                    agree.count = std::min(max_per_launch, shards - first);
                                    for (int s = 0; s < agree.count; ++s)
                                        agree.shards[s] = v.input<StatusWord>(first + s);
                                    agree.agreed = v.output<StatusWord>(0);
                                    launch(queue, "agree_status", 1, agree);
                                }
                            });
}

KernelPtr make_clear_skip_flag(const ClearSkipFlag& /*op*/, KernelRequest& request) {
    return make_cuda_kernel(request, [](const Queue& queue, const KernelArgs& v) {
        launch(queue, "clear_skip_flag", 1, ClearSkip{v.output<StatusWord>(0)});
    });
}

KernelPtr make_advance_step(const AdvanceStep& op, KernelRequest& request) {
    return make_cuda_kernel(request, [op](const Queue& queue, const KernelArgs& v) {
        launch(queue, "advance_step", 1, Advance{v.agreed, v.output<StepCounters>(0), op});
    });
}

KernelPtr make_commit_if_ok(const CommitIfOk& /*op*/, KernelRequest& request) {
    request.want_all_contiguous();
    return make_cuda_kernel(
        request, [bytes = static_cast<std::int64_t>(request.in[0].bytes())](const Queue& queue, const KernelArgs& v) {
            const bool aligned = is_aligned(v.in[0], chunk_bytes) && is_aligned(v.out[0], chunk_bytes);
            launch(queue, "commit_if_ok", ceil_div(bytes, chunk_bytes),
                   CommitChunkIfOk{v.agreed, v.input<std::uint8_t>(0), v.output<std::uint8_t>(0), bytes, aligned});
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

}  // namespace lockstep::cuda
