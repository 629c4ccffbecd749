// How an engine begins: its options are checked and agreed on, its replicas, streams and control words are made.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/parallel/schedule/engine_context.h"

namespace lockstep {

/// `job`: the processes that train together, or null. Throws InvalidArgument for options that are wrong, or that differ
/// between ranks.
EngineContext make_engine_context(std::vector<NamedTensor> tensors, Devices devices, const EngineOptions& wanted,
                                  std::shared_ptr<Communicator> job);

/// The counters and the seed of steps, which lie on every device. They wait for the device's commit stream.
void write_step_state(const EngineContext& context, int device, const StepState& state);
StepState read_step_state(const EngineContext& context);  ///< of the first device

}  // namespace lockstep
