// LOCKSTEP_CHECK_TRACE=1: forward is traced again at every call, to find host state that changed under a kept program.
#pragma once

#include "lockstep/parallel/program/shard_program.h"

namespace lockstep {

/// Throws InvalidArgument, naming the first difference, unless `now` records what `kept` does.
void require_same_trace(const ShardProgram& kept, const ShardProgram& now);

}  // namespace lockstep
