// Sums over the shards of several processes, bucket by bucket, on operations that every backend has: each rank is sent
// its part of a bucket by all others, adds the parts up along the tree, and everybody gathers the sums.
#include "lockstep/ops/internal/step_operations.h"
#include "lockstep/parallel/internal/exchange.h"
#include "lockstep/parallel/internal/rank_exchange.h"
#include "lockstep/parallel/internal/reducer.h"
#include "lockstep/runtime/internal/core_operations.h"

namespace lockstep {

std::vector<int> Reducer::sum_over_ranks(const Bucket& bucket, const PlaceRef& target, const std::vector<int>& ready) {
    Stream& stream = context_.exchange();
    for (const int event : ready) schedule_.wait(stream, event);
    if (context_.reduction == ReductionMode::fast) return all_reduce(bucket, target);
    RankExchange exchange(context_, schedule_, bucket);

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

std::vector<int> Reducer::all_reduce(const Bucket& bucket, const PlaceRef& target) {
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
    const DType dtype = context_.store->parameters()[static_cast<std::size_t>(bucket.arena)].dtype;
    const TensorMeta meta = TensorMeta::contiguous(dtype, {bucket.elements()});
    if (places.empty())  // no rows: it takes part all the same
        schedule_.run(stream,
                      flat_task(context_, stream, 0, std::make_shared<const Fill>(0), {}, {}, {meta}, {target}));
    else if (places.size() > 1 || places.front().memory != target.memory)
        schedule_.run(stream, flat_task(context_, stream, 0, std::make_shared<const TreeSum>(std::move(parts), false),
                                        std::vector<TensorMeta>(places.size(), meta), places, {meta}, {target}));
    const ReduceOp op = update_.optimizer ? ReduceOp::sum : ReduceOp::mean;
    schedule_.run(stream, exchange_task(context_, "all_reduce",
                                        [count = static_cast<std::size_t>(bucket.elements()), dtype, op](
                                            Communicator& job, const Invocation& call) {
                                            job.all_reduce(call.out[0], count, dtype, op);
                                        },
                                        {}, {target}));
    return {schedule_.record(stream)};
}

}  // namespace lockstep
