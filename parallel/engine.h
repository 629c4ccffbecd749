// The engine behind the wrappers: keeps replicas and programs, and runs steps from one host thread. Not templates: the
// wrappers turn models, losses and containers into what is here.
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

class ArenaCut;
class Communicator;
class Engine;
struct LoggedStep;
struct StepOutcome;

/// The loss of a step, read when it is wanted.
class StepLoss {
public:
    StepLoss(Engine& engine, std::shared_ptr<StepOutcome> outcome) : engine_(&engine), outcome_(std::move(outcome)) {}
    /// Value of the loss. Waits for the step; throws StepError when it, or one before it, was refused; InvalidArgument
    /// where that takes the wrapper, and another thread uses it.
    double item() const;
    /// Whether the step is done or was refused, so that `item` does not wait.
    bool ready() const;
    /// Whether the step was skipped: see StepOptions::skip_nonfinite. Waits and throws as `item`.
    bool skipped() const;
    /// The norm of the gradients before the first ClipGradNorm of the step. Waits and throws as `item`, and
    /// InvalidArgument for a step without one.
    double grad_norm() const;

private:
    const std::shared_ptr<StepOutcome>& outcome() const;
    const StepOutcome& done() const;
    Engine* engine_;  ///< asked until the outcome is there
    std::shared_ptr<StepOutcome> outcome_;
};

/// In join: a call of the model's forward of n tensors; throws InvalidArgument where it takes something else.
using ForwardOfTensors = std::function<ModelCall(std::size_t tensors)>;

/// Outputs of a forward with what they came in.
struct ForwardResult {
    std::vector<Tensor> outputs;
    std::shared_ptr<const void> prototype;
};

/// What an engine warns of when it is made: that a device has less than 75% of the memory or cores of another, in
/// PyTorch's words. Empty when the devices are balanced.
std::string imbalance_warning(const std::vector<DeviceInfo>& infos);

/// One thread at a time is inside an engine's calls, or those of its wrapper, optimizers and losses: all but those that
/// only say what the engine was made with throw InvalidArgument while another thread is inside one. Several engines may
/// be used by several threads at once, on the same devices too.
class Engine {
public:
    /// Wraps the tensors of a model. Throws InvalidArgument for tensors spread over devices or wrapped already.
    /// `job`: the processes that train the model together, each on one device; null: this one trains alone. Every
    /// process makes its engine and all calls in the same order, and holds the shards of its rank (`run_of`). They
    /// begin with the parameters, buffers and seed of rank 0; a model or options that differ between them are refused
    /// on all of them (InvalidArgument that names rank and parameter). Throws CommunicationError.
    Engine(const std::vector<NamedTensor>& tensors, Devices devices, const EngineOptions& options,
           std::shared_ptr<Communicator> job = nullptr);
    /// Waits for all devices; never throws. A debug build compares all replicas first.
    ~Engine();
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    const Devices& devices() const;
    int shards() const;
    const EngineOptions& options() const;
    const std::shared_ptr<ParameterStore>& store() const;
    /// Which device updates, and keeps the optimizer's state of, what.
    const ArenaCut& cut() const;
    /// The shards that this process computes: all of them, unless there are others.
    ShardRange held_shards() const;
    /// Device of a shard that this process computes, for those who fill shards themselves.
    Device device_of_shard(int shard) const;
    /// Of this process among those that train together; 0 where it trains alone.
    int rank() const;
    /// For whoever makes several calls that belong together, or reaches for the model's members.
    OneThreadAtATime& one_thread() const;
    /// The processes that train together; null where this one trains alone.
    Communicator* job() const;

    /// Forward, loss, backward, reduction and update of one batch. Returns at once.
    StepLoss step(Optimizer& optimizer, const ModelCall& call, const std::vector<BatchInput>& inputs,
                  const StepOptions& options = {});
    /// Forward of one batch; outputs are gathered on the output device. Autograd follows them where `grad_enabled()`.
    ForwardResult forward(const ModelCall& call, const std::vector<BatchInput>& inputs);

    /// PyTorch's no_sync: backwards of forwards made while it is off leave gradients where they are, in each process.
    /// The next one whose forward was made while it is on brings all together. On at first.
    void set_gradient_sync(bool on) noexcept;
    bool gradient_sync() const;
    /// Between these two, ranks may make different numbers of forwards and backwards. Collective. Throws
    /// InvalidArgument for a process that trains alone and for one scope inside another, CommunicationError, and what
    /// DistributedDataParallel::join says.
    void begin_join(const JoinOptions& options);
    /// This rank has no batch left. Returns when all ranks have none, with the model of the one that came last.
    /// `forward_of`: for a rank that had none at all.
    void end_join(const ForwardOfTensors& forward_of);
    /// This rank ends without: the others find out that it has left.
    void give_up_join() noexcept;
    /// Several processes alone. Throws InvalidArgument when there is a hook already, or training has begun.
    void set_reduction_hook(ReductionHook hook);
    /// Waits for all steps; throws what they have to throw, and what eager calls have found in the inputs and gradients
    /// that the model was given (see Tensor).
    void synchronize();
    /// Whether training ends before the step to come, and why: a signal's number, or 0 where the program itself wants
    /// it. Each process asks before each of its steps, with what it wants (nothing: to go on); all get the same answer
    /// before the same step, which is the fourth at the latest after the first of them wanted it. They tell each other
    /// with the report that every step has anyway. Where several want it the largest number counts. Alone: at once.
    std::optional<int> stop_before_step(std::optional<int> why);
    /// The same between two steps, at once. Waits for all steps. Collective.
    std::optional<int> agree_on_stop(std::optional<int> why);
    /// The sum of what the processes of the job give; `value` where there is one. Waits for all steps. Collective.
    std::int64_t sum_over_ranks(std::int64_t value);
    /// Throws DeviceError naming device (or rank) and parameter when a replica differs from replica 0. Waits for all
    /// steps. Collective where there are several processes.
    void verify_replicas();
    /// Enqueues the copies after all steps so far: later ones change nothing before they are made. The host does not
    /// wait, and `copies` says when they are there.
    void copy_out(StateCopies& copies);
    /// Committed steps so far. Waits for all steps.
    std::uint64_t steps_done();
    /// Continues a run: sets the number of committed steps.
    void set_steps_done(std::uint64_t steps);

    /// What was found by trials where convolutions are computed as those say (ConvAlgorithm::benchmark): the name of
    /// the way by what it computes. Empty otherwise. Checkpoints hold them.
    std::map<std::string, std::string> algorithms() const;
    /// Continues a run: its choices count from now on and are not tried again, so that it has the same bits. Where
    /// trials decide nothing, choices are left alone, and a warning says so. Waits for all steps.
    void set_algorithms(std::map<std::string, std::string> choices);
    /// What this process has tried so far; with several, whoever comes first tries for all.
    std::uint64_t algorithm_trials() const;

    /// How often `forward` of the model was traced: once for each shard shape, mode and loss, and again for a program
    /// that was not kept (EngineOptions::kept_programs).
    std::uint64_t traces() const;
    /// Operations enqueued on each device since the engine was made.
    std::vector<std::uint64_t> operations_per_device() const;

    /// Keeps a log of the last `steps` steps from now on (step_log.h), which takes two events per piece of work; 0: no
    /// more. What was kept is forgotten. In the manual step a step goes from the first forward that will have a
    /// backward to the optimizer's step(). Waits for all steps. Throws InvalidArgument for a negative number.
    void log_steps(int steps);
    /// The log, in order of steps. Waits for all steps. Collective where there are several processes, all of which must
    /// keep a log.
    std::vector<LoggedStep> step_log();

private:
    friend class StepLoss;
    bool is_done(const StepOutcome& outcome) const;
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
