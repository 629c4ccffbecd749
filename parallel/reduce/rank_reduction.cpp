#include "lockstep/parallel/reduce/rank_reduction.h"

#include "lockstep/ops/internal/control_operations.h"
#include "lockstep/parallel/reduce/collectives.h"
#include "lockstep/parallel/reduce/rank_exchange.h"
#include "lockstep/runtime/internal/core_operations.h"

namespace lockstep {

std::vector<int> RankReduction::emit_sum(Emitter& emitter, DeviceIndex, const Bucket& bucket, const Bucket&,
                                         const MemoryRef& target, const std::vector<int>& ready) {
    emitter.wait(topology_.collective(), ready);
    emit_sum_over_ranks(emitter, bucket, target);
    return {emitter.record(topology_.collective())};
}

void RankReduction::emit_check(Emitter& emitter) { emit_collective_check(emitter, ranks_, after_commits()); }

void RankReduction::emit_accumulation(Emitter& emitter, const Bucket& bucket) {
    if (spec_.sync != GradientSync::all) return BucketReduction::emit_accumulation(emitter, bucket);
    const MemoryRef sum =
        reduction_.separate_root_sums(bucket);  // already includes the previous gradients of the arena
    emitter.run_flat(topology_.commit(first_device), first_device, make_operation(CommitIfOk{}),
                     {{bytes_meta(sum.bytes)}, {sum}},
                     {{bytes_meta(sum.bytes)}, {reduction_.gradients(first_device, bucket)}});
}

void RankReduction::emit_own_sum(Emitter& emitter, const Bucket& bucket, const MemoryRef& target) {
    std::vector<std::pair<int, int>> ranges;
    std::vector<MemoryRef> sums;
    const auto take = [&](const MemoryRef& ref) {
        ranges.emplace_back(ranges.size(), ranges.size() + 1);
        sums.push_back(ref);
    };
    for (const DeviceNode& node : sums_.device_nodes()) take(sums_.ref(node, bucket, turn_, bucket.begin, bucket.end));
    if (spec_.sync == GradientSync::all) take(reduction_.gradients(first_device, bucket));
    const TensorMeta flat = reduction_.flat(bucket);
    const std::vector<TensorMeta> flats(sums.size(), flat);
    Stream& stream = topology_.collective();
    if (sums.empty() && adds()) return;
    if (sums.empty())  // no rows: it takes part nevertheless
        emitter.run_flat(stream, first_device, make_operation(Fill{0}), {}, {{flat}, {target}});
    else if (sums.size() > 1 || sums.front().memory != target.memory)
        emitter.run_flat(stream, first_device, make_operation(TreeSum{std::move(ranges), adds(), true}),
                         {flats, std::move(sums)}, {{flat}, {target}});
}

void TreeReduction::emit_sum_over_ranks(Emitter& emitter, const Bucket& bucket, const MemoryRef& target) {
    RankExchange exchange(emitter, ranks_, reduction_, bucket, after_commits());
    // A rank sends one sum for each of its nodes of the tree: a single one, unless its run of shards is unaligned.
    std::vector<std::vector<ShardRange>> nodes, ranks;
    for (const RankIndex r : topology_.every_rank()) {
        nodes.push_back(tree_nodes(topology_.held_by(r, topology_.shards), sums_.present()));
        ranks.push_back({{r.number(), r.number() + 1}});
    }
    const auto own_sum = [&](std::size_t number) {
        return sums_.ref(sums_.device_nodes()[number], bucket, turn_, bucket.begin, bucket.end);
    };
    exchange.emit_sum(nodes, sums_.present(), own_sum, adds(), target);
    if (spec_.sync == GradientSync::all)
        exchange.emit_sum(
            ranks, topology_.ranks, [&](std::size_t) { return reduction_.gradients(first_device, bucket); }, true,
            target);
    if (!spec_.optimizer) exchange.emit_average(target);
    if (!waits_for_more()) exchange.emit_gather(target);  // until then each rank holds its part of the sums
}

void AllReduceReduction::emit_sum_over_ranks(Emitter& emitter, const Bucket& bucket, const MemoryRef& target) {
    emit_own_sum(emitter, bucket, target);
    if (waits_for_more()) return;
    const ReduceOp op = spec_.optimizer ? ReduceOp::sum : ReduceOp::mean;
    const DType dtype = memory_.layout(bucket.arena).dtype;
    emit_collective(
        emitter, ranks_,
        {.name = "all_reduce",
         .body = [count = static_cast<std::size_t>(bucket.elements()), dtype, op](
                     Communicator& job, const KernelArgs& call) { job.all_reduce(call.out[0], count, dtype, op); },
         .in = {target},
         .out = {target},
         .after_commits = after_commits()});
}

}  // namespace lockstep
