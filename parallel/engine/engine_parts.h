// The components of an engine.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/parallel/reduce/ranks.h"
#include "lockstep/parallel/reduce/reduction_memory.h"
#include "lockstep/parallel/reduce/strategy.h"
#include "lockstep/parallel/schedule/engine_memory.h"
#include "lockstep/parallel/schedule/step_recorder.h"
#include "lockstep/parallel/schedule/topology.h"
#include "lockstep/runtime/internal/eager.h"
#include "lockstep/runtime/internal/kernels.h"

namespace lockstep {

struct EngineParts {
    using CutOf = std::function<ArenaPartition(const EngineMemory&, const Topology&)>;
    /// `others` must be connected. `fast`: several processes use the backend's own all-reduce.
    EngineParts(Topology where, const std::vector<NamedTensor>& tensors, Ranks others, std::size_t kept,
                const CutOf& cut_of, bool fast);
    EngineParts(const EngineParts&) = delete;
    EngineParts& operator=(const EngineParts&) = delete;

    Topology topology;
    Ranks ranks;
    EngineMemory memory;
    ReductionMemory reduction;
    std::unique_ptr<Strategy> strategy;
    std::size_t program_cache_size;
    /// Set if convolution algorithms are selected by benchmarking; otherwise null.
    std::unique_ptr<AlgorithmChoices> algorithms = {};
    std::shared_ptr<StepRecorder> recorder = {};  ///< recorder of the step log; null: none
    /// Reports of eager calls that created inputs or gradients: their errors concern the model's values.
    eager_reports::Set eager = {};

    /// From now on the model's tensors, or its gradients, depend on those calls.
    void pass_on_eager_reports(bool gradients) const;
    /// Waits for every stream of the engine and discards all reports. Rethrows the first failure of a stream.
    void synchronize_all_devices();
};

/// Writes the counters and the seed of steps, which each device has. Waits for the device's commit stream.
void write_step_state(const EngineParts& parts, DeviceIndex device, const StepCounters& state);
StepCounters read_step_state(const EngineParts& parts);  ///< reads from the first device

}  // namespace lockstep
