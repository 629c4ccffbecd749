// Joining: what every layer commits becomes one record for all layers.
#pragma once

#include "lockstep/parallel/program/shard_program.h"

namespace lockstep {

/// Joins records of one operation with equal attributes if the operation allows it (Operation::joins): commits with
/// commits, and records that span shards with those next to them. A network with 18 batch normalisations has three
/// such records instead of 54: three kernels, and one exchange between ranks. Results are bit-identical.
void join_alike(ShardProgram& program);

}  // namespace lockstep
