// Sequences: small operations, as of a loss on its sums, become one record.
#pragma once

#include "lockstep/parallel/program/shard_program.h"

namespace lockstep {

/// Replaces runs of small operations (ops/internal/sequence.h) by one record each, if the backend has a kernel for it.
/// A run may skip records that do not depend on it. Results are bit-identical.
void gather_sequences(ShardProgram& program);

}  // namespace lockstep
