// A batch that one rank lends to a rank that has had none, so that it can shadow the others: their program depends on
// the inputs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/parallel/data/sharded_tensor.h"

namespace lockstep {

/// The inputs of a forward as bytes; full shards have `chunk` rows. Empty if the caller has cut one of them already.
std::string pack_batch(const std::vector<BatchInput>& inputs, std::int64_t chunk);

/// Those inputs, on the host, for a rank with `shards` shards: full shards of the same number of rows, repeating from
/// the first row if they run out. `bytes` must not be empty.
std::vector<Tensor> unpack_batch(std::string_view bytes, int shards);

}  // namespace lockstep
