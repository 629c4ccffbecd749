// Where every operand of a placed batch program lies: workspaces, arenas of the shard's replica, copies of constants.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "lockstep/parallel/internal/engine_context.h"
#include "lockstep/parallel/internal/gradient_nodes.h"
#include "lockstep/parallel/internal/schedule.h"
#include "lockstep/parallel/internal/shard_program.h"

namespace lockstep {

/// The shard programs of one batch size: full shards share one, a shorter last shard has its own.
struct BatchProgram {
    BatchCut cut;
    Pass pass = Pass::inference;
    std::shared_ptr<const ShardProgram> full;
    std::shared_ptr<const ShardProgram> last;  ///< the same as `full` where the last shard is full
    const ShardProgram& of(int shard) const { return shard + 1 == cut.present ? *last : *full; }
    bool uneven() const { return full != last; }
};

class ShardMemory {
public:
    ShardMemory(const EngineContext& context, const ConstantCache& constants, const BatchProgram& batch,
                const std::vector<GradientNode>& nodes);

    /// Where `operand` of shard `shard` lies.
    PlaceRef place(int shard, const Operand& operand) const;
    PlaceRef scratch(int shard, std::size_t bytes) const;
    std::size_t workspace_bytes(int shard) const { return plan_of(shard).total; }
    Device device_of(int shard) const;
    int replica_of(int shard) const;

private:
    struct Plan {
        std::vector<std::size_t> offsets;  ///< by trace id
        std::size_t scratch = 0, total = 0;
    };
    static Plan plan(const ShardProgram& program, const std::vector<bool>& outside_workspace, bool keep_gradients);
    const Plan& plan_of(int shard) const { return plans_[static_cast<std::size_t>(shard)]; }

    const EngineContext& context_;
    const ConstantCache& constants_;
    std::vector<Plan> plans_;  ///< by shard
    /// Gradients that are written straight into a node's arena: [shard][trace id].
    std::vector<std::map<int, PlaceRef>> direct_;
};

}  // namespace lockstep
