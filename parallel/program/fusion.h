// Fusion: a record that only makes a pass over the output of the record before it becomes a part of that record, or of
// those that use its own output.
#pragma once

#include "lockstep/parallel/program/shard_program.h"

namespace lockstep {

/// Fuses two neighbouring records if a rule describes it (ops/internal/fusion_rules.h), nothing else uses the value
/// between them, and the backend has a kernel for both. Then removes records whose work all users of their value can
/// do. Results are bit-identical.
void fuse_neighbours(ShardProgram& program);

}  // namespace lockstep
