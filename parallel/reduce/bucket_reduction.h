// Common base of all reductions: buckets one after another, each when backward has completed its gradients.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "lockstep/parallel/reduce/bucket_plan.h"
#include "lockstep/parallel/reduce/gradient_gate.h"
#include "lockstep/parallel/reduce/partial_sums.h"
#include "lockstep/parallel/reduce/update_emitter.h"
#include "lockstep/parallel/schedule/gradient_reduction.h"

namespace lockstep {

/// Use of the gradients of a program after the sum.
enum class AfterSum : std::uint8_t {
    update,          ///< parameters are updated: a step
    keep,            ///< first microbatch: sums stay in the gradient arenas of the summing devices
    add,             ///< a microbatch in between: its sums are added to them
    add_and_update,  ///< the last one
    accumulate       ///< backward of a manual step: added to the gradient arena of device 0, when the step is good
};

/// Gradients that several processes average in the backward of a manual step.
enum class GradientSync : std::uint8_t {
    new_ones,  ///< the gradients of this backward
    all,       ///< those, and the gradients that earlier backwards without sync have left in the arena
    none       ///< none: every process accumulates its own gradients
};

/// A program's settings for its reduction.
struct ReductionSpec {
    AfterSum after = AfterSum::accumulate;
    Optimizer* optimizer = nullptr;  ///< null if `after` is accumulate
    GradientSync sync = GradientSync::new_ones;
    GateRules gate = {};  ///< checks before the first update
};

class BucketReduction : public GradientReduction {
public:
    BucketReduction(const Topology& topology, EngineMemory& memory, ReductionMemory& reduction,
                    const BatchProgram& batch, BucketPlan plan, const ReductionSpec& spec);

    const std::set<ParameterId>& parameters() const final { return plan_.parameters; }
    GradientPlan plan(int shard, const ShardProgram& program) const final;
    void emit_ready(ScheduleBuilder& builder, RecordPair done) final;
    void emit_end(ScheduleBuilder& builder) final;
    bool may_skip() const final { return spec_.gate.may_skip(); }
    MemoryRef loss_scale(DeviceIndex device) const final;

protected:
    /// Whether every device sums a slice of each bucket.
    virtual bool by_slices() const = 0;
    /// The first device whose lanes' sums are added up before others read them.
    virtual int first_combined() const = 0;
    /// Moves the sum of `part` to `target`, on `device`; returns the events after which it is complete.
    virtual std::vector<int> emit_sum(Emitter& emitter, DeviceIndex device, const Bucket& bucket, const Bucket& part,
                                      const MemoryRef& target, const std::vector<int>& ready) = 0;
    /// Emits the check that prevents a failed sum from being committed, on the commit stream, which has waited for the
    /// sum.
    virtual void emit_check(Emitter& emitter) { static_cast<void>(emitter); }
    /// Adds the sum to device 0's gradient arena, if the step is valid.
    virtual void emit_accumulation(Emitter& emitter, const Bucket& bucket);

    bool adds() const { return spec_.after == AfterSum::add || spec_.after == AfterSum::add_and_update; }
    /// Whether it is a microbatch before the last, whose sums wait for the next one.
    bool waits_for_more() const { return spec_.after == AfterSum::keep || spec_.after == AfterSum::add; }
    bool updates() const { return spec_.after == AfterSum::update || spec_.after == AfterSum::add_and_update; }
    /// Whether a bucket is updated as soon as it is summed.
    bool updates_each_bucket() const { return updates() && spec_.gate.empty(); }
    /// Whether a part of the step may have been committed when the bucket is summed: by the update of an earlier
    /// bucket, or by forward.
    bool after_commits() const { return !spec_.optimizer || (updates_each_bucket() && number_ > 0); }

    const Topology& topology_;
    EngineMemory& memory_;
    ReductionMemory& reduction_;
    const BatchProgram& batch_;
    BucketPlan plan_;
    ReductionSpec spec_;
    PartialSums sums_;
    int turn_ = 0;       ///< slot of the bucket
    int number_ = 0;     ///< number of the bucket
    bool last_ = false;  ///< whether it is the last one

private:
    /// Sums elements [begin, end) of a parameter over the shards of `node`.
    void emit_fold(ScheduleBuilder& builder, const GradientNode& node, ParameterId parameter, std::int64_t begin,
                   std::int64_t end, const MemoryRef& sum);
    /// Emits sums in arenas, as soon as a parameter's gradients are complete.
    void emit_folds(ScheduleBuilder& builder, RecordPair done);
    /// Emits, on the bucket's turn, sums in slots, and zeros if only other ranks have gradients.
    void emit_bucket_folds(ScheduleBuilder& builder, const Bucket& bucket);
    void emit_bucket(Emitter& emitter, const Bucket& bucket, const std::vector<int>& ready);
    /// Adds up lanes' sums on devices that have several, before others read them. Returns `ready` and the events of
    /// these sums.
    std::vector<int> emit_combination(Emitter& emitter, const Bucket& bucket, std::vector<int> ready);

    std::optional<UpdateEmitter> update_;
    std::vector<std::size_t> next_fold_;                     ///< by node in an arena: deliveries folded so far
    std::array<std::vector<int>, PartialSums::turns> read_;  ///< events after which slots have been read
};

}  // namespace lockstep
