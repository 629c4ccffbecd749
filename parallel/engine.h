// The engine behind the wrappers: owns replicas and programs, and runs steps from one host thread. It is not a
// template: the wrappers convert models, losses and containers to the types below.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ops/arena.h"
#include "lockstep/ops/model_call.h"
#include "lockstep/ops/optimizer.h"
#include "lockstep/parallel/comm/gradient_bucket.h"
#include "lockstep/parallel/comm/join_options.h"
#include "lockstep/parallel/data/sharded_tensor.h"
#include "lockstep/parallel/engine_options.h"
#include "lockstep/runtime/state_copies.h"

namespace lockstep {

class ArenaPartition;
class Communicator;
class Engine;
struct LoggedStep;
struct StepOutcome;

/// The loss of a step, read on demand.
class StepLoss {
public:
    StepLoss(Engine& engine, std::shared_ptr<StepOutcome> outcome) : engine_(&engine), outcome_(std::move(outcome)) {}
    /// Value of the loss. Waits for the step. Throws StepError if this step or an earlier one was refused, and
    /// InvalidArgument if it must call the wrapper while another thread uses it.
    double item() const;
    /// Whether the step is done or was refused, so that `item` does not wait.
    bool ready() const;
    /// Whether the step was skipped: see StepOptions::skip_nonfinite. Waits and throws as `item`.
    bool skipped() const;
    /// Norm of the gradients before the first ClipGradNorm of the step. Waits and throws as `item`; also throws
    /// InvalidArgument for a step without clipping by norm.
    double grad_norm() const;

private:
    const std::shared_ptr<StepOutcome>& outcome() const;
    const StepOutcome& done() const;
    Engine* engine_;  ///< polled until the outcome is known
    std::shared_ptr<StepOutcome> outcome_;
};

/// For join: a call of the model's forward with n tensors. Throws InvalidArgument if forward takes other inputs.
using ForwardOfTensors = std::function<ModelCall(std::size_t tensors)>;

/// Outputs of a forward, and the structure that contains them.
struct ForwardResult {
    std::vector<Tensor> outputs;
    std::shared_ptr<const void> prototype;
};

/// The warning of an engine's constructor if a device has less than 75% of the memory or cores of another, in PyTorch's
/// words. Empty if the devices are balanced.
std::string imbalance_warning(const std::vector<DeviceInfo>& infos);

/// Only one thread at a time may be inside the calls of an engine, its wrapper, optimizers and losses. All calls except
/// those that only return construction parameters throw InvalidArgument while another thread is inside one. Different
/// engines may be used by different threads concurrently, even on the same devices. With several processes, engines of
/// one process that share a device must be called in the same order on all ranks: the device's streams run their work
/// in order, and steps wait for other processes there.
class Engine {
public:
    /// Wraps the tensors of a model. `job`: the processes that train the model together, each on one device; null: this
    /// process only. All processes construct their engine and make all calls in the same order; each holds the shards
    /// of its rank (`run_of`). The parameters, buffers and seed of rank 0 are broadcast. Throws InvalidArgument for
    /// tensors on more than one device or already wrapped. All ranks throw it, naming rank and parameter, if the model
    /// or the options differ between them. Throws CommunicationError.
    Engine(const std::vector<NamedTensor>& tensors, Devices devices, const EngineOptions& options,
           std::shared_ptr<Communicator> job = nullptr);
    /// Waits for all devices; never throws. A debug build first compares all replicas.
    ~Engine();
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    const Devices& devices() const;
    int shards() const;
    const EngineOptions& options() const;
    const std::shared_ptr<ParameterStore>& store() const;
    /// Maps parameter ranges to the device that updates them and holds their optimizer state.
    const ArenaPartition& cut() const;
    /// The shards that this process computes; all shards unless the job has several processes.
    ShardRange held_shards() const;
    /// Device of a shard that this process computes, for callers that fill shards themselves.
    Device device_of_shard(int shard) const;
    /// Rank of this process in the job; 0 without a job.
    int rank() const;
    /// Guard for callers that make several calls as a unit, or that access the model's members.
    OneThreadAtATime& one_thread() const;
    /// The processes that train together; null without a job.
    Communicator* job() const;

    /// Forward, loss, backward, reduction and update of one batch. Returns without waiting.
    StepLoss step(Optimizer& optimizer, const ModelCall& call, const std::vector<BatchInput>& inputs,
                  const StepOptions& options = {});
    /// Forward of one batch; outputs are gathered on the output device. Autograd records them if `grad_enabled()`.
    ForwardResult forward(const ModelCall& call, const std::vector<BatchInput>& inputs);

    /// PyTorch's no_sync: if off during a forward, its backward leaves the gradients in each process. The next backward
    /// whose forward ran with it on reduces all of them. Initially on.
    void set_gradient_sync(bool on) noexcept;
    bool gradient_sync() const;
    /// Begins a scope in which ranks may make different numbers of forwards and backwards. Collective. Throws
    /// InvalidArgument without a job and for nested scopes, CommunicationError, and the errors of
    /// DistributedDataParallel::join.
    void begin_join(const JoinOptions& options);
    /// Ends the scope on a rank that has no more batches. Returns when all ranks have ended, with the model of the rank
    /// that ended last. `forward_of`: for a rank that had no batch at all.
    void end_join(const ForwardOfTensors& forward_of);
    /// Abandons the scope; the other ranks detect that this rank has left.
    void abort_join() noexcept;
    /// For jobs only. Throws InvalidArgument if a hook is already registered, or if training has begun.
    void set_reduction_hook(ReductionHook hook);
    /// Waits for all steps. Throws their errors, and errors that eager calls found in inputs and gradients of the model
    /// (see Tensor).
    void synchronize();
    /// Agrees on whether training ends before the next step, and why: a signal's number, 0 for the program's own
    /// request, or stopped_by_token. Each process calls it before each of its steps with its request (nullopt:
    /// continue). All processes get the same answer before the same step, at most four steps after the first request.
    /// Requests are exchanged with the status report of each step, at no extra communication. If there are several
    /// requests, the largest number is returned. Without a job the answer is immediate.
    std::optional<int> poll_stop(std::optional<int> why);
    /// Same agreement between two steps, with an immediate answer. Waits for all steps. Collective.
    std::optional<int> sync_stop(std::optional<int> why);
    /// Sum of `value` over the processes of the job; `value` without a job. Waits for all steps. Collective.
    std::int64_t sum_over_ranks(std::int64_t value);
    /// Throws DeviceError naming device (or rank) and parameter if a replica differs from replica 0. Waits for all
    /// steps. Collective.
    void verify_replicas();
    /// Enqueues the copies after all steps so far; later steps wait with their changes until the copies are made. The
    /// host does not wait; `copies` reports when they are complete.
    void copy_out(StateCopies& copies);
    /// Number of committed steps. Waits for all steps.
    std::uint64_t steps_done();
    /// Resumes a run: sets the number of committed steps.
    void set_steps_done(std::uint64_t steps);

    /// Convolution algorithms selected by benchmarking (ConvAlgorithm::benchmark), keyed by problem; empty otherwise.
    /// They are stored in checkpoints.
    std::map<std::string, std::string> algorithms() const;
    /// Resumes a run: uses its algorithm choices instead of benchmarking, so that results are bit-identical. If the
    /// engine does not benchmark, the choices are ignored with a warning. Waits for all steps.
    void set_algorithms(std::map<std::string, std::string> choices);
    /// Number of benchmark trials of this process so far. In a job the first process that needs a result runs the trial
    /// for all.
    std::uint64_t algorithm_trials() const;

    /// Number of times `forward` of the model was traced: once for each shard shape, mode and loss, and again for an
    /// evicted program (EngineOptions::program_cache_size).
    std::uint64_t traces() const;
    /// Operations enqueued on each device since construction.
    std::vector<std::uint64_t> operations_per_device() const;

    /// Records a log of the last `steps` steps (step_log.h), at two events per piece of work; 0 stops recording.
    /// Discards the log so far. In the manual step, a step lasts from the first forward that has a backward to the
    /// optimizer's step(). Waits for all steps. Throws InvalidArgument for a negative number.
    void log_steps(int steps);
    /// The log, ordered by step. Waits for all steps. Collective; all processes of the job must record a log.
    std::vector<LoggedStep> step_log();

private:
    friend class StepLoss;
    bool is_done(const StepOutcome& outcome) const;
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
