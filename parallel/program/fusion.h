// Records that pass over memory which their neighbour has just written are done along with it.
#pragma once

#include "lockstep/parallel/program/shard_program.h"

namespace lockstep {

/// Makes one record of two neighbours that a rule joins (ops/internal/fusion_rules.h), where nothing else uses what
/// lies between and the backend has such a kernel. Bits stay.
void fuse_neighbours(ShardProgram& program);

}  // namespace lockstep
