// Process groups: collectives and messages between the processes of a job. What torch.distributed is to PyTorch.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/parallel/rendezvous.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

class Communicator;

/// mean: the sum divided by the number of ranks; integers are truncated towards zero. Booleans: sum and max are "or",
/// product and min are "and", and there is no mean.
enum class ReduceOp : std::uint8_t { sum, mean, min, max, product };

}  // namespace lockstep
