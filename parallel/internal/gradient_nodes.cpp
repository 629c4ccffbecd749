#include "lockstep/parallel/internal/gradient_nodes.h"

namespace lockstep {

std::vector<GradientNode> gradient_nodes(EngineContext& context, int present, bool keep_root) {
    std::vector<GradientNode> nodes;
    std::vector<int> used(static_cast<std::size_t>(context.devices.size()), 0);
    for (const Lane& lane : context.lanes)
        for (const ShardRange& range : tree_nodes(lane.shards, present)) {
            GradientNode node{range, lane.device, {}};
            int& count = used[static_cast<std::size_t>(lane.device)];
            const bool in_gradients = count == 0 && !(keep_root && lane.device == 0);
            if (in_gradients) {
                context.store->need_gradients(lane.device);
                node.arenas = context.store->replicas()[static_cast<std::size_t>(lane.device)].gradients;
            } else {
                node.arenas = context.partial(lane.device, keep_root && lane.device == 0 ? count : count - 1);
            }
            ++count;
            nodes.push_back(std::move(node));
        }
    return nodes;
}

}  // namespace lockstep
