// The per-element state of an optimizer, on whatever devices it is, as host tensors and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ops/optimizer.h"
#include "lockstep/parallel/checkpoint/host_memory.h"
#include "lockstep/parallel/checkpoint/resume_file.h"
#include "lockstep/parallel/data/safetensors.h"
#include "lockstep/parallel/engine.h"

namespace lockstep::internal {

/// Settings, and copies of the state of all parameters that have been updated, under the names that a resume file has
/// for them. Does not depend on devices or reduction.
class HostOptimizerState {
public:
    HostOptimizerState() = default;
    /// Names the copies to be made into `memory`, which must outlive this.
    HostOptimizerState(const Engine& engine, Optimizer& optimizer, HostMemory& memory, std::vector<StateCopy>& copies);
    /// They have been made.
    void arrived();

    // After that:

    const SavedOptimizer& saved() const { return saved_; }
    const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }

private:
    /// One arena of parameters. Its names and shapes are kept, whatever becomes of the model.
    struct Arena {
        DType dtype = DType::f32;
        std::vector<ArenaSegment> segments;
        std::byte* rows = nullptr;
        std::vector<std::pair<std::string, std::byte*>> states;  ///< elements by name
    };
    std::size_t row_bytes_ = 0;
    std::vector<Arena> arenas_;
    SavedOptimizer saved_;
    std::vector<SafetensorsTensor> tensors_;
};

/// The states that `optimizer` has with the settings of `file`. Throws InvalidArgument where the file is another
/// optimizer's or has other groups, DataError where the optimizer does not allow its settings.
std::vector<std::string> states_with(Optimizer& optimizer, const ResumeFile& file);

/// State from a file, read and checked before the optimizer changes.
class StagedOptimizerState {
public:
    /// Throws DataError where the tensors of `file` are not `states` of this model's parameters.
    StagedOptimizerState(const ResumeFile& file, const ParameterStore& store, const std::vector<std::string>& states);
    const std::vector<std::map<std::string, double>>& settings() const { return settings_; }
    /// Into the optimizer, which has its settings already.
    void store(const Engine& engine, Optimizer& optimizer) const;

private:
    std::vector<std::map<std::string, double>> settings_;
    std::map<std::string, std::vector<std::vector<std::byte>>> arenas_;  ///< by state
    std::vector<std::vector<std::int64_t>> updates_;                     ///< by arena and parameter
};

}  // namespace lockstep::internal
