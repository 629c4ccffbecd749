#include "lockstep/parallel/reduce/strategy.h"

#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/parallel/reduce/across_ranks.h"
#include "lockstep/parallel/reduce/process_reduction.h"
#include "lockstep/parallel/reduce/rank_reduction.h"
#include "lockstep/parallel/schedule/within_process.h"
#include "lockstep/runtime/internal/digest.h"

namespace lockstep {

namespace {

/// DataParallel.
class ProcessStrategy final : public Strategy {
public:
    ProcessStrategy(const Topology& topology, EngineMemory& memory, ReductionMemory& reduction, Ranks& ranks)
        : topology_(topology), memory_(memory), reduction_(reduction), ranks_(ranks) {}

    ProgramStrategy forward() override { return {std::make_unique<WithinProcess>(), nullptr}; }
    ProgramStrategy training(const BatchProgram& batch, const ReductionSpec& spec,
                             const UsedParameters* used) override {
        return {std::make_unique<WithinProcess>(),
                std::make_unique<ProcessReduction>(topology_, memory_, reduction_, batch,
                                                   BucketPlan(memory_, reduction_, ranks_, batch, used), spec)};
    }

private:
    const Topology& topology_;
    EngineMemory& memory_;
    ReductionMemory& reduction_;
    Ranks& ranks_;
};

/// DistributedDataParallel.
class RankStrategy final : public Strategy {
public:
    RankStrategy(const Topology& topology, EngineMemory& memory, ReductionMemory& reduction, Ranks& ranks, bool fast)
        : topology_(topology), memory_(memory), reduction_(reduction), ranks_(ranks), fast_(fast) {}

    ProgramStrategy forward() override {
        return {std::make_unique<AcrossRanks>(ranks_, fingerprint_of({}, {})), nullptr};
    }
    ProgramStrategy training(const BatchProgram& batch, const ReductionSpec& spec,
                             const UsedParameters* used) override {
        BucketPlan plan(memory_, reduction_, ranks_, batch, used);
        const std::uint64_t fingerprint = fingerprint_of(plan.buckets, spec);
        return {std::make_unique<AcrossRanks>(ranks_, fingerprint), reduction_for(batch, std::move(plan), spec)};
    }

private:
    std::unique_ptr<GradientReduction> reduction_for(const BatchProgram& batch, BucketPlan plan,
                                                     const ReductionSpec& spec) {
        const auto make = [&]<class Kind>(std::type_identity<Kind>) {
            return std::make_unique<Kind>(topology_, memory_, reduction_, ranks_, batch, std::move(plan), spec);
        };
        if (spec.sync == GradientSync::none)
            return std::make_unique<OwnReduction>(topology_, memory_, reduction_, batch, std::move(plan), spec);
        if (ranks_.hook()) return make(std::type_identity<HookReduction>());
        if (fast_) return make(std::type_identity<AllReduceReduction>());
        return make(std::type_identity<TreeReduction>());
    }

    /// Digest of everything that must be equal on the other ranks.
    std::uint64_t fingerprint_of(const std::vector<Bucket>& buckets, const ReductionSpec& spec) const {
        Digest own;
        const auto add = [&](std::int64_t value) { own.add(static_cast<std::uint64_t>(value)); };
        // If ranks may use different parameters, buckets that are not synchronized may differ.
        if (!ranks_.agreement() || spec.sync != GradientSync::none)
            for (const Bucket& bucket : buckets)
                for (const std::int64_t value : {std::int64_t{bucket.arena}, bucket.begin, bucket.end}) add(value);
        add(std::int64_t{spec.optimizer != nullptr});
        if (spec.optimizer) {
            // Not the settings: they change between programs that all ranks have cached.
            own.add(std::string_view(spec.optimizer->name()));
            own.add(spec.optimizer->program_key());
            const std::vector<ArenaLayout>& arenas = spec.optimizer->store()->parameters();
            for (int arena = 0; arena < static_cast<int>(arenas.size()); ++arena)
                for (int i = 0; i < static_cast<int>(arenas[static_cast<std::size_t>(arena)].segments.size()); ++i)
                    add(std::int64_t{spec.optimizer->updates({arena, i})});
        }
        add(static_cast<std::int64_t>(spec.sync));
        add(std::int64_t{ranks_.hook() != nullptr});
        Signature gate;
        spec.gate.describe(gate);
        own.add(gate.bytes());
        return own.value();
    }

    const Topology& topology_;
    EngineMemory& memory_;
    ReductionMemory& reduction_;
    Ranks& ranks_;
    bool fast_;
};

}  // namespace

std::unique_ptr<Strategy> make_strategy(const Topology& topology, EngineMemory& memory, ReductionMemory& reduction,
                                        Ranks& ranks, bool fast) {
    if (!ranks.job()) return std::make_unique<ProcessStrategy>(topology, memory, reduction, ranks);
    return std::make_unique<RankStrategy>(topology, memory, reduction, ranks, fast);
}

}  // namespace lockstep
