// Sums over the shards of several processes, bucket by bucket, on operations that every backend has: each rank is sent
// its part of a bucket by all others, adds the parts up along the tree, and everybody gathers the sums.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "lockstep/ops/internal/elementwise_operations.h"
#include "lockstep/ops/internal/step_operations.h"
#include "lockstep/parallel/communication_hook.h"
#include "lockstep/parallel/reduce/exchange.h"
#include "lockstep/parallel/reduce/rank_exchange.h"
#include "lockstep/parallel/reduce/reducer.h"
#include "lockstep/runtime/internal/core_operations.h"
#include "lockstep/runtime/tape.h"

namespace lockstep {

namespace {

DType dtype_in(const EngineContext& context, const Bucket& bucket) {
    return context.store->parameters()[static_cast<std::size_t>(bucket.arena)].dtype;
}

/// What does not fit in a hook's result; empty where it does.
std::string misfit(const Tensor& sum, const Tensor& buffer) {
    if (!sum.defined()) return "it returned an undefined tensor; return the sum of the ranks' buffers";
    if (sum.device().is_host() && sum.dtype() == buffer.dtype() && sum.shape() == buffer.shape()) return {};
    return fmt::format("it returned a tensor of shape {} and {} on {}; the bucket has shape {} and {} on the host",
                       sum.shape().str(), name_of(sum.dtype()), sum.device().str(), buffer.shape().str(),
                       name_of(buffer.dtype()));
}

/// `data`: the numbers of the bucket, before and after.
void run_hook(const ReductionHook& hook, Communicator& job, void* data, const GradientBucket& bucket) {
    const Tensor& own = bucket.buffer();
    const auto& memory = own.impl()->storage->buffer;
    std::string wrong;
    try {
        const NoGrad no_tape;
        std::memcpy(memory->data(), data, memory->bytes());
        const Tensor sum = hook.sum(bucket);
        wrong = misfit(sum, own);
        if (wrong.empty() && sum.impl()->storage != own.impl()->storage) own.copy_(sum);
        std::memcpy(data, memory->data(), memory->bytes());
    } catch (const std::exception& error) {
        wrong = error.what();
    }
    if (wrong.empty()) return;
    hook.abort(fmt::format("rank {}: the communication hook failed: {}", job.rank(), wrong));
    job.give_up(fmt::format("communication hook of bucket {}", bucket.index()), memory->bytes(), wrong);
}

}  // namespace

std::vector<int> Reducer::sum_over_ranks(const Bucket& bucket, const PlaceRef& target, const std::vector<int>& ready) {
    Stream& stream = context_.exchange();
    for (const int event : ready) schedule_.wait(stream, event);
    if (context_.hook || context_.reduction == ReductionMode::fast) {
        sum_own(bucket, target);
        context_.hook ? call_hook(bucket, target) : all_reduce(bucket, target);
        return {schedule_.record(stream)};
    }
    RankExchange exchange(context_, schedule_, bucket, behind_commits());

    // A rank sends one sum for each of its nodes of the tree: one, unless its run of shards is unaligned.
    std::vector<std::vector<ShardRange>> nodes, ranks;
    for (int r = 0; r < context_.ranks(); ++r) {
        nodes.push_back(tree_nodes(context_.held_by(r, context_.shards), sums_->present()));
        ranks.push_back({{r, r + 1}});
    }
    const auto own_sum = [&](std::size_t number) {
        return sums_->place(sums_->device_nodes()[number], bucket, turn_, bucket.begin, bucket.end);
    };
    exchange.sum(nodes, sums_->present(), own_sum, update_.adds, target);
    if (update_.sync == GradientSync::all)
        exchange.sum(
            ranks, context_.ranks(), [&](std::size_t) { return gradients_of(context_, bucket); }, true, target);
    if (!update_.optimizer) exchange.average(target);
    exchange.gather(target);
    return {schedule_.record(stream)};
}

void Reducer::sum_own(const Bucket& bucket, const PlaceRef& target) {
    Stream& stream = context_.exchange();
    std::vector<std::pair<int, int>> parts;
    std::vector<PlaceRef> places;
    const auto take = [&](const PlaceRef& place) {
        parts.emplace_back(parts.size(), parts.size() + 1);
        places.push_back(place);
    };
    for (const DeviceNode& node : sums_->device_nodes())
        take(sums_->place(node, bucket, turn_, bucket.begin, bucket.end));
    if (update_.sync == GradientSync::all) take(gradients_of(context_, bucket));
    const TensorMeta meta = TensorMeta::contiguous(dtype_in(context_, bucket), {bucket.elements()});
    if (places.empty())  // no rows: it takes part all the same
        schedule_.run(stream, flat_task(context_, stream, 0, make_operation(Fill{0}), {}, {}, {meta}, {target}));
    else if (places.size() > 1 || places.front().memory != target.memory)
        schedule_.run(stream, flat_task(context_, stream, 0, make_operation(TreeSum{std::move(parts), false}),
                                        std::vector<TensorMeta>(places.size(), meta), places, {meta}, {target}));
}

void Reducer::all_reduce(const Bucket& bucket, const PlaceRef& target) {
    const ReduceOp op = update_.optimizer ? ReduceOp::sum : ReduceOp::mean;
    place_exchange(
        context_, schedule_,
        {.name = "all_reduce",
         .body = [count = static_cast<std::size_t>(bucket.elements()), dtype = dtype_in(context_, bucket), op](
                     Communicator& job, const Invocation& call) { job.all_reduce(call.out[0], count, dtype, op); },
         .in = {target},
         .out = {target},
         .behind_commits = behind_commits()});
}

void Reducer::call_hook(const Bucket& bucket, const PlaceRef& target) {
    const DType dtype = dtype_in(context_, bucket);
    const auto& segments = context_.store->parameters()[static_cast<std::size_t>(bucket.arena)].segments;
    std::vector<GradientBucket::Part> parts;
    for (int i = bucket.first_segment; i < bucket.last_segment; ++i) {
        const ArenaSegment& segment = segments[static_cast<std::size_t>(i)];
        const std::int64_t begin = std::max(segment.begin, bucket.begin), end = std::min(segment.end, bucket.end);
        const bool whole = begin == segment.begin && end == segment.end;
        parts.push_back({segment.name, whole, whole ? segment.shape : Shape{end - begin}, begin - bucket.begin,
                         end - bucket.begin});
    }
    place_exchange(context_, schedule_,
                   {.name = "communication_hook",
                    .body =
                        [hook = context_.hook, number = number_, last = last_, shape = Shape{bucket.elements()}, dtype,
                         parts = std::move(parts)](Communicator& job, const Invocation& call) {
                            run_hook(*hook, job, call.out[0], {number, last, Tensor::empty(shape, dtype), parts});
                        },
                    .in = {target},
                    .out = {target},
                    .behind_commits = behind_commits()});
    if (update_.optimizer || context_.ranks() == 1) return;
    const TensorMeta meta = TensorMeta::contiguous(dtype, {bucket.elements()});
    schedule_.run(context_.exchange(),
                  flat_task(context_, context_.exchange(), 0, make_operation(Affine{1.0 / context_.ranks(), 0}), {meta},
                            {target}, {meta}, {target}));
}

}  // namespace lockstep
