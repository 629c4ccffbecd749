// Fusion: a record that only passes over what the record before it has written becomes a part of that record.
#pragma once

#include "lockstep/parallel/program/shard_program.h"

namespace lockstep {

/// Joins two neighbouring records where a rule says how (ops/internal/fusion_rules.h), nothing else uses what lies
/// between, and the backend has a kernel for both. Results keep their bits.
void fuse_neighbours(ShardProgram& program);

}  // namespace lockstep
