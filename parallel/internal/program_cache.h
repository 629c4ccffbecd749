// Programs by key: shard programs by shape, placed programs by rows and optimizer. The recently used are kept.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "lockstep/parallel/internal/in_flight.h"
#include "lockstep/parallel/internal/placed_program.h"
#include "lockstep/parallel/internal/recently_used.h"

namespace lockstep {

class ProgramCache {
public:
    ProgramCache(EngineContext& context, InFlight& in_flight, ConstantCache& constants, NanPolicy nan_policy)
        : context_(context), in_flight_(in_flight), constants_(constants), nan_policy_(nan_policy) {}

    /// The program for a batch of `cut` rows whose inputs have the given metas per row; traced, matched and placed when
    /// it is new. Valid until the next call, or as long as one of its instances is in use. Whatever `model` throws
    /// comes through before anything is kept.
    PlacedProgram& get(const ProgramKey& key, Pass pass, const BatchCut& cut, const std::vector<TensorMeta>& inputs,
                       const std::vector<bool>& wants_gradient, const ModelFunction& model, Optimizer* optimizer);
    std::uint64_t traces() const { return traces_; }

private:
    struct Placed {
        std::uint64_t optimizer = 0;  ///< its id, or 0
        std::unique_ptr<PlacedProgram> program;
        std::vector<std::shared_ptr<Storage>> constants;  ///< what it reads outside the model's arenas
    };

    ShardProgram trace(Pass pass, std::int64_t rows, const std::vector<TensorMeta>& inputs,
                       const std::vector<bool>& wants_gradient, const ModelFunction& model) const;
    /// `text`: the key but for the rows.
    std::shared_ptr<const ShardProgram> shard_program(const Signature& text, const ProgramKey& key, Pass pass,
                                                      std::int64_t rows, const std::vector<TensorMeta>& inputs,
                                                      const std::vector<bool>& wants_gradient,
                                                      const ModelFunction& model);
    /// Waits for what is in flight and drops programs of optimizers that are gone, and as many others as it takes.
    void make_room();

    EngineContext& context_;
    InFlight& in_flight_;
    ConstantCache& constants_;
    NanPolicy nan_policy_;
    RecentlyUsed<std::shared_ptr<const ShardProgram>> shard_programs_;
    RecentlyUsed<Placed> placed_;
    Signature key_;  // of the last call: its memory is used again
    std::uint64_t traces_ = 0;
};

}  // namespace lockstep
