#include "lockstep/parallel/reduce/partial_sums.h"

#include <algorithm>

namespace lockstep {

namespace {

ShardRange run_of_device(const Topology& topology, DeviceIndex device) {
    const ShardRange run = run_of(device.number(), topology.devices.size(), topology.held.size());
    return {topology.held.first + run.first, topology.held.first + run.last};
}

}  // namespace

PartialSums::PartialSums(const Topology& topology, EngineMemory& memory, ReductionMemory& reduction, int present,
                         FirstNode first_node)
    : reduction_(reduction), present_(present) {
    std::vector<int> used(static_cast<std::size_t>(topology.devices.size()), 0);
    for (const ComputeLane& lane : topology.lanes) {
        for (const ShardRange& range : tree_nodes(lane.shards, present)) {
            GradientNode node{range, lane.device, lane.stream, -1, {}};
            const int number = at(used, lane.device)++;
            if (first_node == FirstNode::slots) {
                node.slot = number;
            } else if (number > 0) {
                node.slot = number - 1;
            } else if (first_node == FirstNode::separate_root && lane.device == first_device) {
                node.arenas = reduction.separate_root_sums();
            } else {
                memory.store()->ensure_gradients(lane.device);
                node.arenas = memory.replica(lane.device).gradients;
            }
            nodes_.push_back(std::move(node));
        }
    }
    std::size_t next = 0;
    for (const DeviceIndex d : topology.devices.indices())
        for (const ShardRange& range : tree_nodes(run_of_device(topology, d), present)) {
            DeviceNode node{d, next, next};
            while (node.last < nodes_.size() && nodes_[node.last].range.last <= range.last) ++node.last;
            next = node.last;
            device_nodes_.push_back(node);
        }
}

const GradientNode& PartialSums::node_of(int shard) const {
    return *std::find_if(nodes_.begin(), nodes_.end(),
                         [&](const GradientNode& node) { return node.range.contains(shard); });
}

bool PartialSums::uses_slots() const {
    return std::any_of(nodes_.begin(), nodes_.end(), [](const GradientNode& node) { return !node.in_arena(); });
}

MemoryRef PartialSums::ref(const GradientNode& node, const Bucket& bucket, int turn, std::int64_t begin,
                           std::int64_t end) const {
    Bucket part = bucket;
    part.begin = begin;
    part.end = end;
    if (node.in_arena()) return reduction_.elements(node.arenas[static_cast<std::size_t>(bucket.arena)], part, begin);
    const auto& slot = reduction_.slot(node.device, node.slot, turns);
    MemoryRef ref = reduction_.elements(slot, part, begin - bucket.begin);
    ref.offset += static_cast<std::size_t>(turn) * (slot->bytes() / turns);
    return ref;
}

}  // namespace lockstep
