// Creation of an engine: checks its options, makes the ranks agree on them, and creates replicas, streams and control
// words.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/parallel/engine/engine_parts.h"
#include "lockstep/parallel/engine_options.h"

namespace lockstep {

/// `job`: the processes that train together, or null; collective with a job. Throws InvalidArgument for invalid options
/// and options that differ between ranks, and CommunicationError.
std::unique_ptr<EngineParts> make_engine(const std::vector<NamedTensor>& tensors, Devices devices,
                                         const EngineOptions& options, std::shared_ptr<Communicator> job);

}  // namespace lockstep
