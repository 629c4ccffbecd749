// Reductions between processes, bucket by bucket, on the stream for communication with other processes.
#pragma once

#include <utility>
#include <vector>

#include "lockstep/parallel/reduce/bucket_reduction.h"
#include "lockstep/parallel/reduce/ranks.h"

namespace lockstep {

/// Common base: each process has one device, and all receive all sums.
class RankReduction : public BucketReduction {
public:
    RankReduction(const Topology& topology, EngineMemory& memory, ReductionMemory& reduction, Ranks& ranks,
                  const BatchProgram& batch, BucketPlan plan, const ReductionSpec& spec)
        : BucketReduction(topology, memory, reduction, batch, std::move(plan), spec), ranks_(ranks) {}

protected:
    bool by_slices() const final { return false; }
    int first_combined() const final { return 0; }
    std::vector<int> emit_sum(Emitter& emitter, DeviceIndex device, const Bucket& bucket, const Bucket& part,
                              const MemoryRef& target, const std::vector<int>& ready) final;
    void emit_check(Emitter& emitter) final;
    void emit_accumulation(Emitter& emitter, const Bucket& bucket) final;
    /// Emitted on the stream of collectives, which has waited for this rank's gradients.
    virtual void emit_sum_over_ranks(Emitter& emitter, const Bucket& bucket, const MemoryRef& target) = 0;
    /// Writes this rank's whole own sum to `target`, or adds it to the sums of earlier microbatches.
    void emit_own_sum(Emitter& emitter, const Bucket& bucket, const MemoryRef& target);

    Ranks& ranks_;
};

/// Uses only operations that every backend has: each rank receives its part of a bucket from all others, sums the parts
/// along the tree, and all gather the sums. Bit-identical to the reduction within a process.
class TreeReduction final : public RankReduction {
public:
    using RankReduction::RankReduction;

private:
    void emit_sum_over_ranks(Emitter& emitter, const Bucket& bucket, const MemoryRef& target) override;
};

/// The backend's own all-reduce, in its order (ReductionMode::fast).
class AllReduceReduction final : public RankReduction {
public:
    using RankReduction::RankReduction;

private:
    void emit_sum_over_ranks(Emitter& emitter, const Bucket& bucket, const MemoryRef& target) override;
};

/// Reduction by a communication hook.
class HookReduction final : public RankReduction {
public:
    using RankReduction::RankReduction;

private:
    void emit_sum_over_ranks(Emitter& emitter, const Bucket& bucket, const MemoryRef& target) override;
};

}  // namespace lockstep
