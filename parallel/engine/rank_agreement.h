// Checks between the processes that train one model, outside of steps: that they start with the same options, model and
// values, and that their replicas are still equal.
#pragma once

#include <string>
#include <vector>

#include "lockstep/parallel/engine/engine_parts.h"
#include "lockstep/runtime/random.h"

namespace lockstep {

/// Throws InvalidArgument, on all ranks, if a rank's description of its options differs from that of rank 0.
void agree_on_options(Communicator& job, const std::string& own);

/// Throws InvalidArgument, on all ranks, if names, shapes or dtypes of parameters and buffers differ from those of rank
/// 0, naming rank and parameter. Then copies the seed and, if `values`, the values from rank 0. Corresponds to DDP's
/// _verify_param_shape_across_processes and _sync_module_states.
void begin_alike(EngineParts& parts, StepCounters& state, bool values);

/// Broadcasts the buffers of rank 0. Waits for all steps.
void broadcast_buffers(const EngineParts& parts);

/// Broadcasts parameters, buffers, counters and the state of `optimizers` of rank `root`. Waits for all steps.
void broadcast_state(EngineParts& parts, const std::vector<Optimizer*>& optimizers, int root);

/// Throws DeviceError, on all ranks, if the replica of one differs from that of rank 0, naming rank and parameter.
void require_same_values(const EngineParts& parts);

}  // namespace lockstep
