// When the gradients of a bucket are complete.
#pragma once

#include "lockstep/parallel/reduce/arena_partition.h"
#include "lockstep/parallel/schedule/batch_program.h"
#include "lockstep/parallel/schedule/engine_memory.h"

namespace lockstep {

/// The last records before a bucket is reduced: after them its gradients are complete and its parameters are no longer
/// read.
RecordPair ready_after(const EngineMemory& memory, const BatchProgram& batch, const Bucket& bucket);

}  // namespace lockstep
