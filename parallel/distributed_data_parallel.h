// DistributedDataParallel: one model on one device in each of several processes.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/communication_hook.h"
#include "lockstep/parallel/sharded_model.h"

namespace lockstep {

/// Options of a DistributedDataParallel.
using DistributedDataParallelOptions = EngineOptions;

/// Trains `Net` together with the other processes of a group, each on its device. All processes construct it and make
/// all calls in the same order. Batches are global; each process computes the shards of its rank. With the same number
/// of shards, training is bit-identical to DataParallel. torch.nn.parallel.DistributedDataParallel.
///
/// `step` accepts batches from a Loader (each process reads only its rows), or tensors that hold the whole batch on
/// every rank. The manual step also accepts this rank's own rows, as in PyTorch. `forward` of plain tensors returns the
/// outputs of these rows; `backward()` averages the gradients of their losses over the ranks.
///
/// Without find_unused_parameters all ranks must use the same parameters. With it, each rank may use different
/// parameters in each step.
///
/// Gradients are summed along the tree of shards while backward is running. Each rank sums its part of a bucket and
/// receives the other parts, by operations that every backend provides. If a rank fails, all others throw
/// CommunicationError, at the latest when the group's timeout expires.
template <class Net>
class DistributedDataParallel : public ShardedModel<Net> {
public:
    /// Collective. Broadcasts the parameters, buffers and seed of rank 0. Throws InvalidArgument on all ranks if models
    /// or options differ, naming rank and parameter.
    explicit DistributedDataParallel(Net model, ProcessGroup& group, Device device,
                                     const DistributedDataParallelOptions& options = {})
        : ShardedModel<Net>("DistributedDataParallel", std::move(model), Devices({device}), options,
                            group.communicator("ddp")) {}
    /// Uses the visible device with index local rank modulo the number of visible devices.
    explicit DistributedDataParallel(Net model, ProcessGroup& group, const DistributedDataParallelOptions& options = {})
        : DistributedDataParallel(std::move(model), group, device_of_rank(group), options) {}

    /// While the returned object exists, backward leaves the gradients in each process. The first backward afterwards
    /// all-reduces them together with its own. Forward must also be called inside the scope.
    class [[nodiscard]] NoSync {
    public:
        explicit NoSync(Engine& engine) : engine_(engine), before_(engine.gradient_sync()) {
            const OneThreadAtATime::Use use(engine_.one_thread(), "no_sync");
            engine_.set_gradient_sync(false);
        }
        ~NoSync() { engine_.set_gradient_sync(before_); }
        NoSync(const NoSync&) = delete;
        NoSync& operator=(const NoSync&) = delete;

    private:
        Engine& engine_;
        bool before_;
    };
    NoSync no_sync() { return NoSync(this->engine()); }

    /// Runs `body`, in which ranks may make different numbers of forwards and backwards (of local rows) and
    /// updates; each forward must be followed by one backward. A rank whose body has ended joins the collectives of the
    /// others with zero gradients until all bodies have ended. Then the model and the optimizers are broadcast from the
    /// rank that ended last. Running statistics are those of rank 0. While rank 0 waits, it updates them with its last
    /// batch, or with a batch of another rank if it had none. Results are not bit-identical across device counts.
    /// Collective. Rethrows what `body` throws; the other ranks then throw CommunicationError. Throws InvalidArgument
    /// if a rank had no batch at all and forward takes inputs other than tensors. torch's Join,
    /// DistributedDataParallel.join.
    template <class Body>
    void join(Body&& body, const JoinOptions& options = {}) {
        this->engine().begin_join(options);
        try {
            std::forward<Body>(body)();
            this->engine().end_join([this](std::size_t tensors) { return this->forward_of_tensors(tensors); });
        } catch (...) {
            this->engine().abort_join();
            throw;
        }
    }

    /// Replaces the gradient all-reduce by `hook`, which runs on a duplicate of `group`; `group` must be the one passed
    /// to the constructor. Results are not bit-identical across device counts. Collective. Every rank must register the
    /// same hook, once, before the first forward or step (InvalidArgument otherwise).
    void register_comm_hook(ProcessGroup& group, CommunicationHook hook) {
        const std::shared_ptr<ProcessGroup> own = group.duplicate();
        this->engine().set_reduction_hook(
            {[hook = std::move(hook), own](const GradientBucket& bucket) { return hook(bucket, *own); },
             [own](const std::string& reason) { own->abort(reason); }});
    }

private:
    static Device device_of_rank(const ProcessGroup& group) {
        const Devices visible = Devices::visible();
        return visible[group.local_rank() % visible.size()];
    }
};

}  // namespace lockstep
