// Options for loading the weights of a file into a model.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/runtime/language.h"

namespace lockstep {

/// Selects and renames the tensors to load.
struct LoadOptions {
    /// If false, tensors that the file lacks leave the model's unchanged, and tensors that the model lacks are ignored.
    /// Shapes and dtypes must always fit.
    bool strict = true;
    /// Maps a tensor name of the file to the model's name. Prefixes "module." and "_orig_mod." need no mapping.
    std::function<std::string(const std::string& name)> rename = {};
    /// Selects tensors by the model's name; other tensors are neither loaded nor reported as missing.
    std::function<bool(const std::string& name)> filter = {};
    /// Name of the dictionary to read from a file of torch.save that holds several dictionaries of tensors: "ema".
    std::string entry = {};
};

/// Result of load_state_dict: tensor names that the file lacks (missing), and those that the model lacks (unexpected).
struct LoadResult {
    std::vector<std::string> missing, unexpected;
};

}  // namespace lockstep
