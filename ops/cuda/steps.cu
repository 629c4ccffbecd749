// What steps are made of besides the model's own operations: partial sums, agreement, counters.
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/internal/arithmetic.h"
#include "lockstep/ops/internal/gradient_arithmetic.h"
#include "lockstep/ops/internal/step_operations.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/shard_tree.h"

namespace lockstep::cuda {

namespace {

/// Pointers and numbers travel as kernel arguments, of which there are 4 KiB.
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

template <class T>
struct TreeSumElement {
    const T* parts[max_per_launch];
    Joins joins;
    bool accumulate;
    const StatusWord* agreed;
    T* out;

    LOCKSTEP_ELEMENT void operator()(std::int64_t e) const {
        if (accumulate && !is_good(agreed)) return;
        T partial[32];
        int held = 0;
        for (int i = 0; i < joins.parts; ++i) {
            T sum = parts[i][e];
            for (int j = 0; j < joins.of[i]; ++j) sum = partial[--held] + sum;
            partial[held++] = sum;
        }
        out[e] = accumulate ? out[e] + partial[0] : partial[0];
    }
};

// ---- status and counters ----------------------------------------------------------------------------------------

struct Agree {
    const StatusWord* shards[max_per_launch];
    int count;
    StatusWord* agreed;

    LOCKSTEP_ELEMENT void operator()(std::int64_t) const {
        for (int s = 0; s < count && agreed->code == 0; ++s)
            if (shards[s]->code != 0) *agreed = *shards[s];
    }
};

struct Forget {
    StatusWord* agreed;

    LOCKSTEP_ELEMENT void operator()(std::int64_t) const { element::forget_skip(*agreed); }
};

struct Advance {
    const StatusWord* agreed;
    StepState* state;
    bool whole_step;

    LOCKSTEP_ELEMENT void operator()(std::int64_t) const {
        if (!is_good(agreed)) return;
        state->micro = whole_step ? 0 : state->micro + 1;
        state->step += whole_step ? 1 : 0;
    }
};

struct TakeOverByte {
    const StatusWord* agreed;
    const std::uint8_t* prepared;
    std::uint8_t* state;

    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        if (is_good(agreed)) state[i] = prepared[i];
    }
};

KernelPtr make_tree_sum(const TreeSum& op, KernelRequest& request) {
    request.want_all_contiguous();
    require_at_most(op.name, "partial sums", op.ranges.size(), std::size_t{max_per_launch});
    Joins joins;
    joins.parts = static_cast<int>(op.ranges.size());
    plan_node(op.ranges, 0, op.ranges.front().first, op.ranges.back().second, joins);
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [joins, accumulate = op.accumulate, commits = op.commits(),
                                          elements = request.in[0].numel()](const Queue& queue, const KernelArgs& v) {
            TreeSumElement<T> element{};
            for (int i = 0; i < joins.parts; ++i) element.parts[i] = v.input<T>(i);
            element.joins = joins;
            element.accumulate = accumulate;
            element.agreed = commits ? v.agreed : nullptr;
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

KernelPtr make_forget_skip(const ForgetSkip& /*op*/, KernelRequest& request) {
    return make_cuda_kernel(request, [](const Queue& queue, const KernelArgs& v) {
        launch(queue, "forget_skip", 1, Forget{v.output<StatusWord>(0)});
    });
}

KernelPtr make_advance_step(const AdvanceStep& op, KernelRequest& request) {
    return make_cuda_kernel(request, [whole = op.whole_step](const Queue& queue, const KernelArgs& v) {
        launch(queue, "advance_step", 1, Advance{v.agreed, v.output<StepState>(0), whole});
    });
}

KernelPtr make_take_over(const TakeOver& /*op*/, KernelRequest& request) {
    return make_cuda_kernel(request, [bytes = request.in[0].numel()](const Queue& queue, const KernelArgs& v) {
        launch(queue, "take_over", bytes, TakeOverByte{v.agreed, v.input<std::uint8_t>(0), v.output<std::uint8_t>(0)});
    });
}

}  // namespace

void add_step_kernels(KernelTable& table) {
    table.add<TreeSum, make_tree_sum>();
    table.add<AgreeStatus, make_agree_status>();
    table.add<ForgetSkip, make_forget_skip>();
    table.add<AdvanceStep, make_advance_step>();
    table.add<TakeOver, make_take_over>();
}

}  // namespace lockstep::cuda
