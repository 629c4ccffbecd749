// The engine behind the wrappers: keeps replicas and programs, and runs steps from one host thread. Not templates: the
// wrappers turn models, losses and containers into what is here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/ops/arena.h"
#include "lockstep/ops/clip_grad.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/optimizer.h"
#include "lockstep/parallel/data/sharded_tensor.h"
#include "lockstep/runtime/placement.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

class ArenaCut;
class Communicator;
class GradientBucket;
struct LoggedStep;

/// How gradients are brought together.
enum class ReductionMode : std::uint8_t {
    root,        ///< summed on device 0, updated there, weights broadcast (PyTorch's DataParallel)
    slice_wise,  ///< every device sums and updates its slice, weights are gathered by all: no device holds more
    fast  ///< several processes: the backend's own all-reduce, in its own order. Gives up the promise of equal bits
};

/// What happens to a step whose loss is not finite.
enum class NanPolicy : std::uint8_t {
    stop,  ///< it changes nothing and StepError is thrown, at the latest two calls later
    go_on  ///< it counts like any other, as in PyTorch
};

struct EngineOptions {
    int shards = 0;             ///< S; 0: the number of devices. Fixing it fixes all bits, whatever the devices
    int threads_per_shard = 0;  ///< CPU threads a shard is computed with; 0: one where shards are fixed, else all cores
    bool deterministic = false;  ///< same bits run after run; implied by fixed shards
    /// How f32 convolutions are computed on CPU devices: as LOCKSTEP_CONV says unless set. See docs/numerics.md.
    std::optional<ConvAlgorithm> convolution = {};
    ReductionMode reduction = ReductionMode::root;
    NanPolicy nan_policy = NanPolicy::stop;
    std::optional<std::uint64_t> seed = {};  ///< of random masks; that of manual_seed unless set
    std::size_t bucket_bytes = 0;  ///< gradients are reduced in ranges of about so many; 0: see docs/reduction.md
    std::optional<Device> output_device = {};  ///< where outputs are gathered; the first device unless set
    /// Programs (one a batch size, mode, loss and optimizer) kept with their memory; the one not used for the longest
    /// time goes, and is made again when it is wanted. One whose forward still waits for its backward stays.
    int kept_programs = 64;

    // Several processes alone.
    /// Bytes of the first range of gradients that is reduced; 0: 1 MiB, and then `bucket_bytes` is 25 MiB unless set.
    std::size_t first_bucket_bytes = 0;
    /// Parameters that only some ranks use get zeros from the others; what none uses keeps its gradient, or has none,
    /// and is not updated. Otherwise unused ones are an error that names them. Costs a small collective between the
    /// hosts before each step, or forward that has a backward, and a program for every combination of what ranks use.
    bool find_unused_parameters = false;
    /// All ranks use the same parameters in every step: those that are not used are left alone, and it is an error,
    /// which names one, when others get gradients later.
    bool static_graph = false;
    /// The parameters and buffers of rank 0 become everybody's at the start. Otherwise all ranks must have the same.
    bool init_sync = true;
    /// The buffers of rank 0 become everybody's before every forward. Running statistics are the same on all ranks
    /// anyway; a model that writes other buffers, differently on each rank, needs it. Costs a collective, and each step
    /// waits for the one before it.
    bool broadcast_buffers = false;
};

/// How one step goes through its batch.
struct StepOptions {
    /// The batch is taken in so many parts, one after another, with the memory of one part's activations; the
    /// parameters change once, behind the last. Loss and gradients are those of the whole batch: the weights of the
    /// loss are summed over all parts first. Every shard is cut in so many pieces of ceil(rows / micro_steps) rows, the
    /// last one shorter; where rows run out there are fewer. To layers every part is a forward of its own: it has its
    /// own random masks, and BatchNorm normalises with its rows and moves the running statistics once for it.
    int micro_steps = 1;
    /// What is done to the gradients of the whole batch, in this order, after the last of them is there and before any
    /// parameter is updated: `{.clip = {ClipGradNorm{.max_norm = 1}}}`. The norm is one number for all devices and
    /// ranks, and has the same bits for any number of them. The numbers are part of the program. Without it parameters
    /// are updated while backward goes on.
    std::vector<GradientClip> clip = {};
    /// A step whose gradients are not all finite changes nothing, on any device or rank, and the next one goes on
    /// (StepLoss::skipped). Takes the same place as `clip`, and comes first.
    bool skip_nonfinite = false;
};

/// What happens when ranks run out of batches one after the other (DistributedDataParallel::join).
struct JoinOptions {
    /// The mean of gradients is over all ranks, those without batches count as zeros. Otherwise it is over the ranks
    /// that still have some: late batches count for more.
    bool divide_by_initial_world_size = true;
    /// All ranks throw StepError as soon as one has none left.
    bool throw_on_early_termination = false;
};

/// The loss of a step, read when it is wanted.
class StepLoss {
public:
    struct State;
    explicit StepLoss(std::shared_ptr<State> state) : state_(std::move(state)) {}
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
    const State& done() const;
    std::shared_ptr<State> state_;
};

/// An input of a step: a whole batch, or one cut already.
using BatchInput = std::variant<Tensor, ShardedTensor>;

/// What a model does to one shard: symbolic inputs to outputs, or to a loss.
struct ModelResult {
    std::vector<Tensor> outputs;
    std::vector<Loss::Term> loss;
    std::string structure;                  ///< of the outputs' containers; must not depend on the shard
    std::shared_ptr<const void> prototype;  ///< the output object itself, to be filled with gathered tensors
};
using ModelFunction = std::function<ModelResult(const std::vector<Tensor>& inputs)>;

/// What decides, besides shapes and flags of parameters, which program a call needs.
struct ProgramKey {
    Signature text;         ///< model modes, non-tensor arguments, loss
    bool training = false;  ///< some module is in training mode
    /// Makes what is kept with a new program: what the text refers to by address. May be empty.
    std::function<std::shared_ptr<const void>()> keep;
};

/// A forward to be made. `forward_of(n)` in join: the model's forward of n tensors; throws InvalidArgument where it
/// takes something else.
struct ForwardCall {
    ProgramKey key;
    ModelFunction model;
};
using ForwardOfTensors = std::function<ForwardCall(std::size_t tensors)>;

/// What brings gradients together in place of an engine's own reduction (communication_hook.h).
struct ReductionHook {
    std::function<Tensor(const GradientBucket&)> sum;
    std::function<void(const std::string& reason)> abort;  ///< ends what `sum` waits for, on all ranks
};

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
    Engine(std::vector<NamedTensor> tensors, Devices devices, EngineOptions options,
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
    StepLoss step(Optimizer& optimizer, const ProgramKey& key, const std::vector<BatchInput>& inputs,
                  const ModelFunction& model, const StepOptions& options = {});
    /// Forward of one batch; outputs are gathered on the output device. Differentiable where taping is on.
    ForwardResult forward(const ProgramKey& key, const std::vector<BatchInput>& inputs, const ModelFunction& model);

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
    /// Committed steps so far. Waits for all steps.
    std::uint64_t steps_done();
    /// Continues a run: sets the number of committed steps.
    void set_steps_done(std::uint64_t steps);

    /// How often `forward` of the model was traced: once for each shard shape, mode and loss, and again for a program
    /// that was not kept (EngineOptions::kept_programs).
    std::uint64_t traces() const;
    /// Operations enqueued on each device since the engine was made.
    std::vector<std::uint64_t> operations_per_device() const;

    /// Keeps a log of the last `steps` steps from now on (step_log.h), which takes two events a piece of work; 0: no
    /// more. What was kept is forgotten. In the longer form a step goes from the first forward that will have a
    /// backward to the optimizer's step(). Waits for all steps. Throws InvalidArgument for a negative number.
    void log_steps(int steps);
    /// The log, in order of steps. Waits for all steps. Collective where there are several processes, all of which must
    /// keep a log.
    std::vector<LoggedStep> step_log();

private:
    friend class StepLoss;
    bool is_done(const StepLoss::State& state) const;
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
