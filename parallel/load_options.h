// How the weights of a file become those of a model.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace lockstep {

/// Which of a file's tensors a model takes, and what they are called there.
struct LoadOptions {
    /// Otherwise tensors may be missing in the file, which leaves the model's as they are, or be there that the model
    /// has not. Shapes and dtypes must fit in any case.
    bool strict = true;
    /// The model's name for what the file calls so; what "module." or "_orig_mod." stands before is known without.
    std::function<std::string(const std::string& name)> rename = {};
    /// Whether the tensor that the model calls so takes part; those that don't are neither loaded nor missed.
    std::function<bool(const std::string& name)> filter = {};
    /// Of a file of torch.save that holds several dictionaries of tensors, the name of the one to read: "ema".
    std::string entry = {};
};

/// What load_state_dict returns: names of the model that the file lacks, and of the file that the model has not.
struct LoadResult {
    std::vector<std::string> missing, unexpected;
};

}  // namespace lockstep
