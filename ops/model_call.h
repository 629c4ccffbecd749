// A call of a model as seen by programs: its function of a shard, and the key that identifies it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/ops/loss.h"
#include "lockstep/runtime/signature.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// Result of a model for one shard: outputs, or a loss.
struct ModelResult {
    std::vector<Tensor> outputs;
    std::vector<Loss::Term> loss;
    std::string structure;                  ///< structure of the outputs' containers; must not depend on the shard
    std::shared_ptr<const void> prototype;  ///< the output object itself, to be filled with gathered tensors
};
using ModelFunction = std::function<ModelResult(const std::vector<Tensor>& inputs)>;

/// A call of a wrapper. The functions may refer to the caller's objects. They are called only during the call, and only
/// if there is no program for the key, shapes and parameter flags.
struct ModelCall {
    Signature key;           ///< model modes, non-tensor arguments, loss
    bool identified = true;  ///< equal keys are equal calls; otherwise only a trace distinguishes them
    bool training = false;   ///< some module is in training mode
    /// Creates an owner, stored with a new program, of objects that the key refers to by address. May be empty.
    std::function<std::shared_ptr<const void>()> keep = {};
    ModelFunction function = {};
};

}  // namespace lockstep
