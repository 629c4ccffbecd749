// Content of a checkpoint, as of the point between two steps.
#pragma once

#include <filesystem>
#include <vector>

#include "lockstep/parallel/checkpoint/host_memory.h"
#include "lockstep/parallel/checkpoint/host_optimizer_state.h"
#include "lockstep/parallel/checkpoint/model_weights.h"
#include "lockstep/parallel/checkpoint/resume_file.h"
#include "lockstep/parallel/run_state.h"

namespace lockstep::internal {

/// Throws InvalidArgument, in the name of `function`, for an optimizer of another model.
void require_own(const Engine& engine, const Optimizer& optimizer, const char* function);

/// Weights, optimizer and run. Uses memory of `memory`, which must outlive it.
class Snapshot {
public:
    /// Enqueues the copies after all previous steps; does not wait. Throws InvalidArgument, in the name of `function`,
    /// for an optimizer of another model and for a run that could not be loaded.
    Snapshot(const char* function, Engine& engine, const std::vector<NamedTensor>& tensors, Optimizer& optimizer,
             const RunState& run, HostMemory& memory);
    /// Waits for the copies; from any thread. Returns false if an earlier step was refused, so that they are invalid.
    bool wait();

    // Valid after wait().

    const std::vector<SafetensorsTensor>& weights() const { return weights_.tensors(); }
    const HostOptimizerState& optimizer() const { return optimizer_; }
    const RunState& run() const { return run_; }
    const SavedAlgorithms& algorithms() const { return algorithms_; }

private:
    RunState run_;
    SavedAlgorithms algorithms_;
    StateCopies copies_;
    HostWeights weights_;
    HostOptimizerState optimizer_;
};

/// Writes both files of a checkpoint, as save_checkpoint documents.
void write_checkpoint(const Snapshot& snapshot, const std::filesystem::path& checkpoint);

}  // namespace lockstep::internal
