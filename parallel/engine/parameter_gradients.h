// The gradients of a model's parameters (grad()), and the arena of device 0 that contains them.
#pragma once

#include <set>

#include "lockstep/parallel/engine/engine_parts.h"

namespace lockstep {

class ParameterGradients {
public:
    explicit ParameterGradients(EngineParts& parts) : parts_(parts) {}

    bool has(ParameterId parameter) const;
    /// Moves gradients that are elsewhere (from eager operations or the user) to the arena.
    void take_in();
    /// Zeroes the arena if one of `parameters` has no gradient, because the next backward adds.
    void clear_missing(const std::set<ParameterId>& parameters);
    /// Sets the gradient of those of `parameters` that had none to its range of the arena.
    void show(const std::set<ParameterId>& parameters);
    /// Removes the gradients from the parameters. Returns whether there may have been any.
    bool forget();

private:
    /// The gradient's memory in the arena.
    Tensor in_arena(ParameterId parameter) const;
    bool is_in_arena(const Tensor& gradient, std::size_t arena) const;

    EngineParts& parts_;
    bool given_ = true;  ///< whether a parameter may have a gradient: from before it was wrapped, or in the arena
};

}  // namespace lockstep
