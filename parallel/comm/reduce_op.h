// Reduction operations of collectives.
#pragma once

#include <cstdint>

#include "lockstep/runtime/language.h"

namespace lockstep {

/// mean: the sum divided by the number of ranks; integers are truncated towards zero. Integers wrap. f16 and bf16 are
/// computed in f32 and rounded after every addition. For booleans sum and max are "or", product and min are "and", and
/// mean is not supported.
enum class ReduceOp : std::uint8_t { sum, mean, min, max, product };

}  // namespace lockstep
