// What an optimizer keeps per parameter, wherever the devices keep it, as tensors on the host and back.
#pragma once

#include <cstddef>
#include <filesystem>
#include <vector>

#include "lockstep/ops/optimizer.h"
#include "lockstep/parallel/engine.h"
#include "lockstep/parallel/safetensors.h"

namespace lockstep::internal {

/// Copies of the momentum of all parameters that have some, by their names. Does not depend on devices or reduction.
class HostMomentum {
public:
    HostMomentum(const Engine& engine, SGD& optimizer);
    const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }

private:
    std::vector<std::vector<std::byte>> arenas_;  // keeps the memory
    std::vector<SafetensorsTensor> tensors_;
};

/// What a file has, read and checked, before the optimizer has any of it.
class StagedMomentum {
public:
    /// Throws DataError where the tensors of `file` are not of this model's parameters.
    StagedMomentum(const SafetensorsFile& file, const ParameterStore& store, const std::filesystem::path& path);
    /// Into the optimizer, which has its settings already.
    void store(const Engine& engine, SGD& optimizer) const;

private:
    std::vector<std::vector<std::byte>> arenas_;
    std::vector<std::vector<bool>> present_;  ///< by arena and segment
};

}  // namespace lockstep::internal
