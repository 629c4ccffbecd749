// Checks between the processes that train one model, outside of steps: that they start with the same options, model and
// values, and that their replicas are still equal.
#pragma once

#include <string>
#include <vector>

#include "lockstep/parallel/engine/engine_parts.h"
#include "lockstep/runtime/random.h"

namespace lockstep {

/// Throws InvalidArgument, on all ranks, where what some rank says of its options differs from what rank 0 says.
void agree_on_options(Communicator& job, const std::string& own);

/// Throws InvalidArgument, on all ranks, where names, shapes or dtypes of parameters and buffers differ from those of
/// rank 0, naming rank and parameter; then takes the seed, and where `values` the values as well, from rank 0. DDP's
/// _verify_param_shape_across_processes and _sync_module_states.
void begin_alike(EngineParts& parts, StepState& state, bool values);

/// Broadcasts the buffers of rank 0. Waits for all steps.
void broadcast_buffers(const EngineParts& parts);

/// Broadcasts parameters, buffers, counters and the state of `optimizers` of rank `root`. Waits for all steps.
void broadcast_state(EngineParts& parts, const std::vector<Optimizer*>& optimizers, int root);

/// Throws DeviceError, on all ranks, where the replica of one differs from that of rank 0, naming rank and parameter.
void require_same_values(const EngineParts& parts);

}  // namespace lockstep
