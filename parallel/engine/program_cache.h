// Programs by key: shard programs by shape, placed programs by rows and optimizer. The recently used are kept.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/parallel/engine/in_flight.h"
#include "lockstep/parallel/engine/recently_used.h"
#include "lockstep/parallel/schedule/micro_steps.h"
#include "lockstep/parallel/schedule/placed_program.h"

namespace lockstep {

/// What a call of the wrapper asks for.
struct ProgramCall {
    const ProgramKey& key;
    Pass pass;
    const std::vector<TensorMeta>& inputs;  ///< of the whole batch
    const std::vector<bool>& wants_gradient;
    const ModelFunction& model;
    GradientSync sync = GradientSync::new_ones;
    GateRules gate = {};  ///< of a step
};

/// A batch program with what it uses.
struct TracedBatch {
    std::shared_ptr<const BatchProgram> batch;
    UsedParameters used;
};

class ProgramCache {
public:
    ProgramCache(EngineContext& context, InFlight& in_flight, ConstantCache& constants, NanPolicy nan_policy)
        : context_(context), in_flight_(in_flight), constants_(constants), nan_policy_(nan_policy) {}

    /// The program for a batch of `cut` rows; traced, matched and placed when it is new. Valid until the next call, or
    /// as long as one of its instances is in use. Whatever the model throws comes through before anything is kept.
    PlacedProgram& get(const ProgramCall& call, const BatchCut& cut, Optimizer* optimizer) {
        return *kept(call, {&cut, 1}, false, optimizer).program;
    }
    /// Likewise the programs of a step that takes its batch in the micro-steps `cuts`. Valid until the next call.
    MicroSteps& get(const ProgramCall& call, std::span<const BatchCut> cuts, Optimizer& optimizer) {
        return *kept(call, cuts, true, &optimizer).micro_steps;
    }
    /// For programs that ranks place together: traced and matched when it is new. Valid until the next call.
    const TracedBatch& traced(const ProgramCall& call, const BatchCut& cut);
    /// Such a program, placed for the parameters that all ranks use when it is new; null: those that it uses itself.
    /// Valid as those of `get`.
    PlacedProgram& placed(const std::shared_ptr<const BatchProgram>& batch, GradientSync sync, Optimizer* optimizer,
                          const UsedParameters* used, const GateRules& gate = {});
    std::uint64_t traces() const { return traces_; }

private:
    struct Placed {
        std::uint64_t optimizer = 0;  ///< its id, or 0
        std::unique_ptr<PlacedProgram> program;
        std::unique_ptr<MicroSteps> micro_steps;          ///< in its place
        std::vector<std::shared_ptr<Storage>> constants;  ///< what it reads outside the model's arenas
    };

    Placed& kept(const ProgramCall& call, std::span<const BatchCut> cuts, bool in_micro_steps, Optimizer* optimizer);
    Placed place(const ProgramCall& call, std::span<const BatchCut> cuts, bool in_micro_steps, Optimizer* optimizer);
    std::shared_ptr<BatchProgram> batch_program(const ProgramCall& call, const BatchCut& cut, bool micro_step);
    /// Without a program, with the constants that `parts` read.
    Placed with_constants(const std::vector<std::shared_ptr<const BatchProgram>>& parts, const Optimizer* optimizer);
    void refresh_constants(const Placed& placed);
    void begin_key(const ProgramCall& call, const BatchCut& first, bool micro_step);
    void add_to_key(GradientSync sync, const Optimizer* optimizer, const GateRules& gate);
    /// The key but for the rows and the optimizer.
    void describe(const ProgramCall& call, bool micro_step, Signature& text) const;
    ShardProgram trace(const ProgramCall& call, std::int64_t rows, bool micro_step) const;
    std::shared_ptr<const ShardProgram> shard_program(const ProgramCall& call, std::int64_t rows, bool micro_step);
    void require_unchanged(const ProgramCall& call, const BatchProgram& batch, bool micro_step) const;
    /// Waits for what is in flight and drops programs of optimizers that are gone, and as many others as it takes.
    void make_room();

    EngineContext& context_;
    InFlight& in_flight_;
    ConstantCache& constants_;
    NanPolicy nan_policy_;
    RecentlyUsed<std::shared_ptr<const ShardProgram>> shard_programs_;
    RecentlyUsed<TracedBatch> traced_;
    RecentlyUsed<Placed> placed_;
    Signature key_;  // of the last call: its memory is used again
    std::uint64_t traces_ = 0;
};

}  // namespace lockstep
