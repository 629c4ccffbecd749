// A call of a model as programs see it: what it does to a shard, and what tells it apart from other calls.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/ops/loss.h"
#include "lockstep/runtime/signature.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// What a model makes of one shard: outputs, or a loss.
struct ModelResult {
    std::vector<Tensor> outputs;
    std::vector<Loss::Term> loss;
    std::string structure;                  ///< of the outputs' containers; must not depend on the shard
    std::shared_ptr<const void> prototype;  ///< the output object itself, to be filled with gathered tensors
};
using ModelFunction = std::function<ModelResult(const std::vector<Tensor>& inputs)>;

/// A call of a wrapper. The functions, which may refer to what is the caller's, are called during the call alone, and
/// only where there is no program for the key, shapes and flags of parameters.
struct ModelCall {
    Signature key;          ///< model modes, non-tensor arguments, loss
    bool training = false;  ///< some module is in training mode
    /// Makes what is kept with a new program: what the key refers to by address. May be empty.
    std::function<std::shared_ptr<const void>()> keep = {};
    ModelFunction function = {};
};

}  // namespace lockstep
