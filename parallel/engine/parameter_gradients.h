// The gradients that a model's parameters show (grad()), and the arena of device 0 in which they lie.
#pragma once

#include <set>

#include "lockstep/parallel/engine/engine_parts.h"

namespace lockstep {

class ParameterGradients {
public:
    explicit ParameterGradients(EngineParts& parts) : parts_(parts) {}

    bool has(ParameterId parameter) const;
    /// Moves gradients that lie elsewhere (eager operations made them, or the user) into the arena.
    void take_in();
    /// Zeroes the arena where one of `parameters` has no gradient: the coming backward adds.
    void clear_missing(const std::set<ParameterId>& parameters);
    /// Those of `parameters` that had none show what lies in the arena from now on.
    void show(const std::set<ParameterId>& parameters);
    /// Parameters lose the gradients that lie in the arena. Returns whether there may have been some.
    bool forget();

private:
    /// The gradient's memory in the arena.
    Tensor in_arena(ParameterId parameter) const;
    bool lies_in_arena(const Tensor& gradient, std::size_t arena) const;

    EngineParts& parts_;
    bool given_ = false;  ///< some parameter's gradient may lie in the arena
};

}  // namespace lockstep
