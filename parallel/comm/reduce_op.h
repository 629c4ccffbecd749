// What collectives do with the values of the ranks.
#pragma once

#include <cstdint>

namespace lockstep {

/// mean: the sum divided by the number of ranks; integers are truncated towards zero. Integers wrap. f16 and bf16 are
/// computed in f32 and rounded after every addition. Booleans: sum and max are "or", product and min are "and", and
/// there is no mean.
enum class ReduceOp : std::uint8_t { sum, mean, min, max, product };

}  // namespace lockstep
