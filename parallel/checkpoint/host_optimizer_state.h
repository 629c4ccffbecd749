// What an optimizer keeps for the elements, wherever the devices keep it, as tensors on the host and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/ops/optimizer.h"
#include "lockstep/parallel/checkpoint/resume_file.h"
#include "lockstep/parallel/data/safetensors.h"
#include "lockstep/parallel/engine.h"

namespace lockstep::internal {

/// Settings, and copies of the state of all parameters that have been updated, under the names that a resume file has
/// for them. Does not depend on devices or reduction.
class HostOptimizerState {
public:
    HostOptimizerState(const Engine& engine, Optimizer& optimizer);
    const SavedOptimizer& saved() const { return saved_; }
    const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }

private:
    SavedOptimizer saved_;
    std::vector<std::vector<std::byte>> arenas_;  // keeps the memory
    std::vector<SafetensorsTensor> tensors_;
};

/// The states that `optimizer` has with the settings of `file`. Throws InvalidArgument where the file is another
/// optimizer's or has other groups, DataError where the optimizer does not allow its settings.
std::vector<std::string> states_with(Optimizer& optimizer, const ResumeFile& file);

/// What a file has, read and checked, before the optimizer has any of it.
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
