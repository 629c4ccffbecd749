// Where gradients of shards are summed before they leave a device: the nodes of the tree that a lane holds.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/parallel/internal/engine_context.h"

namespace lockstep {

/// A node of the tree of shards with the memory of its sum. A node of one shard is that shard's gradient itself.
struct GradientNode {
    ShardRange range;
    int device = 0;
    std::vector<std::shared_ptr<Buffer>> arenas;  ///< one an arena
};

/// The nodes of all lanes for `present` shards, in order of shards. The first node of a device lies in its gradient
/// arena, further ones in partial arenas; with `keep_root`, device 0's gradient arena is left alone (it holds a sum
/// that is added to).
std::vector<GradientNode> gradient_nodes(EngineContext& context, int present, bool keep_root);

}  // namespace lockstep
