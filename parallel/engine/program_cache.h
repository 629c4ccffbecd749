// Programs by key: shard programs by shape, scheduled programs by rows and optimizer. Recently used ones are cached.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/parallel/engine/in_flight.h"
#include "lockstep/parallel/engine/recently_used.h"
#include "lockstep/parallel/program/trace_check.h"
#include "lockstep/parallel/program/trace_shard.h"
#include "lockstep/parallel/schedule/constant_cache.h"
#include "lockstep/parallel/schedule/microbatches.h"

namespace lockstep {

/// A batch program, and the parameters that it uses.
struct TracedBatch {
    std::shared_ptr<const BatchProgram> batch;
    UsedParameters used;
    TraceChecks checks = {};
};

class ProgramCache {
public:
    /// `stops_at_nan`: a non-finite loss is reported.
    ProgramCache(EngineParts& parts, InFlight& in_flight, bool stops_at_nan)
        : parts_(parts), in_flight_(in_flight), stops_at_nan_(stops_at_nan) {}

    /// The program for a batch of `cut` rows; traced, matched and scheduled if it is new. Valid until the next call, or
    /// as long as one of its instances is in use. Exceptions of the model are passed on before anything is cached.
    ScheduledProgram& get(const ProgramRequest& request, const BatchCut& cut, const ReductionSpec& spec) {
        return *kept(request, {&cut, 1}, spec, nullptr).program;
    }
    /// As above, for a step whose batch is cut into the microbatches `cuts`; `request` must be for microbatches.
    /// `used`: as in `scheduled`. Valid until the next call.
    Microbatches& get(const ProgramRequest& request, std::span<const BatchCut> cuts, const ReductionSpec& spec,
                      const UsedParameters* used) {
        return *kept(request, cuts, spec, used).microbatches;
    }
    /// For programs that ranks schedule together: traced and matched if it is new. Valid until the next call.
    const TracedBatch& traced(const ProgramRequest& request, const BatchCut& cut);
    /// A traced program, scheduled if it is new for `used`: the parameters that any rank uses; null: those that it uses
    /// itself. Valid as long as programs of `get`.
    ScheduledProgram& scheduled(const std::shared_ptr<const BatchProgram>& batch, const ReductionSpec& spec,
                                const UsedParameters* used);
    std::uint64_t traces() const { return traces_; }

private:
    struct Entry {
        std::uint64_t optimizer = 0;  ///< its id, or 0
        std::unique_ptr<ScheduledProgram> program;
        std::unique_ptr<Microbatches> microbatches;       ///< instead of `program`
        std::vector<std::shared_ptr<Storage>> constants;  ///< memory that it reads outside the model's arenas
        TraceChecks checks;
    };
    using Batches = std::vector<std::shared_ptr<const BatchProgram>>;

    Entry& kept(const ProgramRequest& request, std::span<const BatchCut> cuts, const ReductionSpec& spec,
                const UsedParameters* used);
    Entry make(const ProgramRequest& request, std::span<const BatchCut> cuts, const ReductionSpec& spec,
               const UsedParameters* used);
    std::unique_ptr<ScheduledProgram> schedule(const std::shared_ptr<const BatchProgram>& batch,
                                               const ReductionSpec& spec, const UsedParameters* used);
    std::unique_ptr<Microbatches> schedule(const Batches& parts, const ReductionSpec& spec, const UsedParameters* used);
    std::shared_ptr<const BatchProgram> batch_program(const ProgramRequest& request, const BatchCut& cut);
    /// An entry without a program, with the constants that `parts` read.
    Entry with_constants(const Batches& parts, const Optimizer* optimizer);
    void refresh_constants(const Entry& entry);
    void begin_key(const ProgramRequest& request, const BatchCut& first);
    void add_to_key(const ReductionSpec& spec);
    /// Adds all parts of the key except rows and reduction.
    void describe(const ProgramRequest& request, Signature& key) const;
    std::shared_ptr<const ShardProgram> shard_program(const ProgramRequest& request, const TracedRows& rows);
    TracedRows rows_of(const ProgramRequest& request, const BatchCut& cut, int shard) const;
    /// Whether these are the programs of a request with their key. If a check is due: throws InvalidArgument if host
    /// values that forward or loss read have changed. If one process refuses a call, all do.
    bool match(TraceChecks& checks, const ProgramRequest& request,
               std::span<const std::shared_ptr<const BatchProgram>> batches) const;
    /// Before a program is added: drops programs of destroyed optimizers and, if the cache is full, the least recently
    /// used ones, and frees the activations of all except those used last. Waits for the steps in flight if there is
    /// something to drop or free.
    void make_room();

    EngineParts& parts_;
    InFlight& in_flight_;
    bool stops_at_nan_;
    ConstantCache constants_;
    RecentlyUsed<std::shared_ptr<const ShardProgram>> shard_programs_;
    RecentlyUsed<TracedBatch> traced_;
    RecentlyUsed<Entry> entries_;
    Signature key_;  // key of the last call; its memory is reused
    // Of calls that their keys do not identify: the number of the program among those with equal keys, and a number for
    // everything that is traced at once. Otherwise 0.
    std::uint64_t variant_ = 0, generation_ = 0, generations_ = 0;
    std::uint64_t traces_ = 0;
};

}  // namespace lockstep
