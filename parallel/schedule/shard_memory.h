// Memory of every operand of a batch program: workspaces, arenas of the shard's replica, copies of constants.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "lockstep/parallel/schedule/batch_program.h"
#include "lockstep/parallel/schedule/constant_cache.h"
#include "lockstep/parallel/schedule/engine_memory.h"
#include "lockstep/parallel/schedule/gradient_reduction.h"

namespace lockstep {

/// Bytes from the beginning of an operand's buffer to its first element.
std::ptrdiff_t offset_of_first(const Operand& operand);

class ShardMemory {
public:
    /// `reduction`: null for a program without gradients.
    ShardMemory(const Topology& topology, EngineMemory& memory, const ConstantCache& constants,
                const BatchProgram& batch, const GradientReduction* reduction);

    /// Memory of `operand` of shard `shard`.
    MemoryRef ref(int shard, const Operand& operand) const;
    /// Memory of `operand` on a replica: a parameter, a buffer or a constant, not a value of the trace.
    MemoryRef lasting(DeviceIndex replica, const Operand& operand) const;
    MemoryRef scratch(int shard, std::size_t bytes) const;
    std::size_t workspace_bytes(int shard) const { return plan_of(shard).total; }

private:
    struct Plan {
        std::vector<std::size_t> offsets;  ///< by trace id
        std::size_t scratch = 0, total = 0;
        std::map<int, MemoryRef> direct;  ///< by trace id: gradients that are written directly to the memory in which
                                          ///< they are summed, and casts of parameters
    };
    static Plan plan(const ShardProgram& program, Device device, GradientPlan gradients);
    const Plan& plan_of(int shard) const { return plans_[static_cast<std::size_t>(shard)]; }

    const Topology& topology_;
    const EngineMemory& memory_;
    const ConstantCache& constants_;
    std::vector<Plan> plans_;  ///< by shard; empty for those of other processes
};

}  // namespace lockstep
