#include "lockstep/parallel/reduce/partial_sums.h"

#include <algorithm>

namespace lockstep {

namespace {

ShardRange run_of_device(const EngineContext& context, int device) {
    const ShardRange run = run_of(device, context.devices.size(), context.held.size());
    return {context.held.first + run.first, context.held.first + run.last};
}

}  // namespace

PartialSums::PartialSums(EngineContext& context, int present, FirstNode first_node)
    : context_(context), present_(present) {
    std::vector<int> used(static_cast<std::size_t>(context.devices.size()), 0);
    for (std::size_t lane = 0; lane < context.lanes.size(); ++lane) {
        const int device = context.lanes[lane].device;
        for (const ShardRange& range : tree_nodes(context.lanes[lane].shards, present)) {
            GradientNode node{range, device, static_cast<int>(lane), -1, {}};
            const int number = used[static_cast<std::size_t>(device)]++;
            if (first_node == FirstNode::slots) {
                node.slot = number;
            } else if (number > 0) {
                node.slot = number - 1;
            } else if (first_node == FirstNode::beside_root && device == 0) {
                node.arenas = context.sums_to_add();
            } else {
                context.store->need_gradients(device);
                node.arenas = context.store->replicas()[static_cast<std::size_t>(device)].gradients;
            }
            nodes_.push_back(std::move(node));
        }
    }
    std::size_t next = 0;
    for (int d = 0; d < context.devices.size(); ++d)
        for (const ShardRange& range : tree_nodes(run_of_device(context, d), present)) {
            DeviceNode node{d, next, next};
            while (node.last < nodes_.size() && nodes_[node.last].range.last <= range.last) ++node.last;
            next = node.last;
            device_nodes_.push_back(node);
        }
}

const GradientNode& PartialSums::node_of(int shard) const {
    return *std::find_if(nodes_.begin(), nodes_.end(), [&](const GradientNode& node) {
        return node.range.first <= shard && shard < node.range.last;
    });
}

bool PartialSums::uses_slots() const {
    return std::any_of(nodes_.begin(), nodes_.end(), [](const GradientNode& node) { return !node.in_arena(); });
}

PlaceRef PartialSums::place(const GradientNode& node, const Bucket& bucket, int turn, std::int64_t begin,
                            std::int64_t end) const {
    const auto arena = static_cast<std::size_t>(bucket.arena);
    const std::size_t size = size_of(context_.store->parameters()[arena].dtype);
    const std::size_t bytes = static_cast<std::size_t>(end - begin) * size;
    if (node.in_arena()) return fixed(node.arenas[arena], static_cast<std::size_t>(begin) * size, bytes);
    const auto& slot = context_.slot(node.device, node.slot, turns);
    return fixed(slot,
                 static_cast<std::size_t>(turn) * (slot->bytes() / turns) +
                     static_cast<std::size_t>(begin - bucket.begin) * size,
                 bytes);
}

}  // namespace lockstep
