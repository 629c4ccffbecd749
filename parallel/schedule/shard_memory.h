// Where every operand of a placed batch program lies: workspaces, arenas of the shard's replica, copies of constants.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "lockstep/parallel/program/shard_program.h"
#include "lockstep/parallel/reduce/partial_sums.h"
#include "lockstep/parallel/schedule/engine_context.h"
#include "lockstep/parallel/schedule/micro_step.h"
#include "lockstep/parallel/schedule/schedule.h"

namespace lockstep {

/// The shard programs of one batch size: full shards share one, a shorter last shard has its own.
struct BatchProgram {
    BatchCut cut;
    Pass pass = Pass::inference;
    MicroStep micro;
    std::shared_ptr<const ShardProgram> full;
    std::shared_ptr<const ShardProgram> last;  ///< the same as `full` where the last shard is full
    ShardRange held;                           ///< the shards that this process computes, of those present
    const ShardProgram& of(int shard) const { return cut.is_last(shard) ? *last : *full; }
    bool uneven() const { return full != last; }
};

/// The last records, in the full shards' program and in the last shard's, before a bucket is reduced.
struct Readiness {
    long full = -1, last = -1;
};
/// Behind them its gradients are complete and its parameters are read no more.
Readiness ready_after(const EngineContext& context, const BatchProgram& batch, const Bucket& bucket);

/// Bytes from the beginning of an operand's buffer to its first element.
std::ptrdiff_t offset_of_first(const Operand& operand);

class ShardMemory {
public:
    /// `sums`: null for a program without gradients. `ready`: by bucket, behind which records it is reduced.
    ShardMemory(const EngineContext& context, const ConstantCache& constants, const BatchProgram& batch,
                const PartialSums* sums, const std::vector<Bucket>& buckets, const std::vector<Readiness>& ready);

    /// Where `operand` of shard `shard` lies.
    PlaceRef place(int shard, const Operand& operand) const;
    /// Where `operand`, which is no place in a trace, lies on a replica: a parameter, a buffer, a constant.
    PlaceRef lasting(int replica, const Operand& operand) const;
    PlaceRef scratch(int shard, std::size_t bytes) const;
    std::size_t workspace_bytes(int shard) const { return plan_of(shard).total; }
    Device device_of(int shard) const;
    int replica_of(int shard) const;

private:
    struct Plan {
        std::vector<std::size_t> offsets;  ///< by trace id
        std::size_t scratch = 0, total = 0;
    };
    /// `kept`: by delivery, the last record before its gradient may be forgotten.
    static Plan plan(const ShardProgram& program, Device device, const std::vector<bool>& outside_workspace,
                     const std::vector<long>& kept);
    const Plan& plan_of(int shard) const { return plans_[static_cast<std::size_t>(shard)]; }

    const EngineContext& context_;
    const ConstantCache& constants_;
    std::vector<Plan> plans_;  ///< by shard; empty for those of other processes
    /// Gradients that are written straight into a node's arena: [shard][trace id].
    std::vector<std::map<int, PlaceRef>> direct_;
};

}  // namespace lockstep
