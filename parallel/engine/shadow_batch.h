// A batch that one rank lends to another, which had none, for its shadow of the others: it shows what their model is
// called with.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/parallel/data/sharded_tensor.h"

namespace lockstep {

/// The inputs of a forward, whose full shards have `chunk` rows, as bytes; none where one of them was cut before.
std::string pack_batch(const std::vector<BatchInput>& inputs, std::int64_t chunk);

/// These inputs for a rank of so many shards, on the host: full ones, of the same rows, from the first again where they
/// run out. `bytes` are not empty.
std::vector<Tensor> unpack_batch(std::string_view bytes, int shards);

}  // namespace lockstep
