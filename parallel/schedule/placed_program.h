// A batch program placed on devices: one copy a shard, run record by record across all of them.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/parallel/reduce/reducer.h"
#include "lockstep/parallel/reduce/used_parameters.h"
#include "lockstep/parallel/schedule/shard_memory.h"

namespace lockstep {

/// The schedule of a batch program with the workspaces that it needs. Commands [0, forward_end) are forward and loss,
/// the rest backward, reduction and update.
class PlacedProgram {
public:
    /// `used`: what all ranks use, for which the program brings gradients together; null: what it uses itself.
    PlacedProgram(EngineContext& context, const ConstantCache& constants, std::shared_ptr<const BatchProgram> batch,
                  UpdatePlan update, const UsedParameters* used = nullptr);

    const BatchProgram& batch() const { return *batch_; }
    const std::shared_ptr<const BatchProgram>& shared_batch() const { return batch_; }
    /// Parameters (arena, segment) that have gradients behind its backward.
    const std::set<std::pair<int, int>>& parameters() const { return parameters_; }
    const ShardMemory& memory() const { return memory_; }
    std::size_t forward_end() const { return forward_end_; }
    /// An instance that nobody else uses, made on first use; free again when the caller lets go of it.
    std::shared_ptr<Instance> acquire();
    /// An instance in workspaces that several programs share, one a shard and large enough for each of them.
    std::shared_ptr<Instance> instance_in(std::vector<std::shared_ptr<Buffer>> workspaces) const {
        return std::make_shared<Instance>(schedule_, std::move(workspaces));
    }
    /// Somebody uses an instance.
    bool in_use() const;
    void enqueue_forward(Instance& instance, Phase phase) {
        instance.enqueue(schedule_, 0, forward_end_, phase, context_.recorder.get(), SpanKind::forward);
    }
    void enqueue_backward(Instance& instance, Phase phase) {
        instance.enqueue(schedule_, forward_end_, schedule_.size(), phase, context_.recorder.get(), SpanKind::backward);
    }
    const std::vector<Bucket>& buckets() const { return buckets_; }

private:
    friend class ProgramPlacer;
    std::shared_ptr<const BatchProgram> batch_;
    std::optional<PartialSums> sums_;
    std::set<std::pair<int, int>> parameters_;
    std::vector<Bucket> buckets_;
    std::vector<Readiness> ready_;  ///< by bucket: behind which records it is reduced
    ShardMemory memory_;
    EngineContext& context_;
    Schedule schedule_;
    std::size_t forward_end_ = 0;
    std::vector<std::shared_ptr<Instance>> instances_;
};

}  // namespace lockstep
