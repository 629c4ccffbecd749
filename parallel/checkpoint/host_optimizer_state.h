// The per-element state of an optimizer as host tensors, whatever devices it is on.
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

/// Settings, and copies of the state of all updated parameters, under their names in a resume file. Does not depend on
/// devices or reduction.
class HostOptimizerState {
public:
    HostOptimizerState() = default;
    /// Lists the copies to be made into `memory`, which must outlive this.
    HostOptimizerState(const Engine& engine, Optimizer& optimizer, HostMemory& memory, std::vector<StateCopy>& copies);
    /// To be called when the copies are complete.
    void arrived();

    // Valid after arrived().

    const SavedOptimizer& saved() const { return saved_; }
    const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }

private:
    /// One arena of parameters. Its names and shapes are stored here, so they do not depend on the model's lifetime.
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

/// The states of `optimizer` with the settings of `file`. Throws InvalidArgument if the file is of another optimizer or
/// has other groups, DataError if the optimizer rejects its settings.
std::vector<std::string> states_with(Optimizer& optimizer, const ResumeFile& file);

/// State from a file, read and checked before the optimizer changes.
class StagedOptimizerState {
public:
    /// Throws DataError if the tensors of `file` are not `states` of this model's parameters.
    StagedOptimizerState(const ResumeFile& file, const ParameterStore& store, const std::vector<std::string>& states);
    const std::vector<std::map<std::string, double>>& settings() const { return settings_; }
    /// Copies the state into the optimizer, which already has its settings.
    void store(const Engine& engine, Optimizer& optimizer) const;

private:
    std::vector<std::map<std::string, double>> settings_;
    std::map<std::string, std::vector<std::vector<std::byte>>> arenas_;  ///< by state
    std::vector<std::vector<std::int64_t>> updates_;                     ///< by arena and parameter
};

}  // namespace lockstep::internal
