// Programs by key: shard programs by shape, batch programs by rows, placed programs by optimizer.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/parallel/internal/placed_program.h"

namespace lockstep {

class ProgramCache {
public:
    ProgramCache(EngineContext& context, ConstantCache& constants, NanPolicy nan_policy)
        : context_(context), constants_(constants), nan_policy_(nan_policy) {}

    /// The program for a batch of `cut` rows whose inputs have the given metas per row; traced, matched and placed when
    /// it is new. Whatever `model` throws comes through before anything is kept.
    PlacedProgram& get(const ProgramKey& key, Pass pass, const BatchCut& cut, const std::vector<TensorMeta>& inputs,
                       const std::vector<bool>& wants_gradient, const ModelFunction& model, Optimizer* optimizer);
    std::uint64_t traces() const { return traces_; }

private:
    ShardProgram trace(Pass pass, std::int64_t rows, const std::vector<TensorMeta>& inputs,
                       const std::vector<bool>& wants_gradient, const ModelFunction& model) const;
    std::shared_ptr<const ShardProgram> shard_program(const std::string& text, const ProgramKey& key, Pass pass,
                                                      std::int64_t rows, const std::vector<TensorMeta>& inputs,
                                                      const std::vector<bool>& wants_gradient,
                                                      const ModelFunction& model);

    void refresh_constants(const BatchProgram& batch);

    EngineContext& context_;
    ConstantCache& constants_;
    NanPolicy nan_policy_;
    std::map<std::string, std::shared_ptr<const ShardProgram>> shard_programs_;
    std::map<std::tuple<std::string, std::int64_t, std::uint64_t>, std::unique_ptr<PlacedProgram>> placed_;
    std::uint64_t traces_ = 0;
};

}  // namespace lockstep
