// What the processes that train one model make sure of outside of steps: that they begin with the same options, model
// and values, and that their replicas have stayed alike.
#pragma once

#include <vector>

#include "lockstep/parallel/schedule/engine_context.h"
#include "lockstep/runtime/random.h"

namespace lockstep {

/// Throws InvalidArgument for what only one process with several devices can do.
void require_one_process_a_device(const Devices& devices, const EngineOptions& options);

/// Throws InvalidArgument, on all ranks, where shards, determinism, buckets, or what else all must know differ from
/// those of rank 0. Takes the smallest number of threads a shard where that was left open.
void agree_on_options(EngineContext& context, const EngineOptions& options);

/// Throws InvalidArgument, on all ranks, where names, shapes or dtypes of parameters and buffers differ from those of
/// rank 0, naming rank and parameter; then takes the seed, and where `values` the values as well, from rank 0. DDP's
/// _verify_param_shape_across_processes and _sync_module_states.
void begin_alike(EngineContext& context, StepState& state, bool values);

/// Rank 0's buffers become everybody's. Waits for all steps.
void take_buffers(const EngineContext& context);

/// Parameters, buffers, counters and the state of `optimizers` of rank `root` become everybody's. Waits for all steps.
void take_state(EngineContext& context, const std::vector<Optimizer*>& optimizers, int root);

/// Throws DeviceError, on all ranks, where the replica of one differs from that of rank 0, naming rank and parameter.
void require_same_values(const EngineContext& context);

}  // namespace lockstep
