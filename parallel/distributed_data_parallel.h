// DistributedDataParallel: one model on one device in each of several processes.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/communication_hook.h"
#include "lockstep/parallel/sharded_model.h"

namespace lockstep {

using DistributedDataParallelOptions = EngineOptions;

/// Trains `Net` together with the other processes of a group, each on its device. Every process makes it, and every
/// call, in the same order; batches are the global ones, of which a process computes the shards of its rank. With the
/// same number of shards it trains bit for bit as DataParallel does. torch.nn.parallel.DistributedDataParallel.
///
/// `step` takes batches from a Loader (each process reads its rows), or tensors that hold the whole batch on every
/// rank. PyTorch's manual step takes those, or this rank's own rows: `forward` of plain tensors returns the outputs of
/// these rows, and `backward()` leaves the mean over the ranks of the gradients of their losses, as in PyTorch.
///
/// Without find_unused_parameters all ranks use the same parameters; with it each may use others in each step.
///
/// Gradients are summed along the tree of shards while backward goes on: every rank sums its part of a bucket and gets
/// those of the others, on operations that every backend has. A rank that cannot go on makes all others throw
/// CommunicationError, at the latest when the group's timeout has passed.
template <class Net>
class DistributedDataParallel : public ShardedModel<Net> {
public:
    /// Collective. The parameters, buffers and seed of rank 0 become everybody's. Throws InvalidArgument on all ranks
    /// where models or options differ, naming rank and parameter.
    explicit DistributedDataParallel(Net model, ProcessGroup& group, Device device,
                                     const DistributedDataParallelOptions& options = {})
        : ShardedModel<Net>("DistributedDataParallel", std::move(model), Devices({device}), options,
                            group.communicator("ddp")) {}
    /// On the visible device of number local rank modulo their count.
    explicit DistributedDataParallel(Net model, ProcessGroup& group, const DistributedDataParallelOptions& options = {})
        : DistributedDataParallel(std::move(model), group, device_of_rank(group), options) {}

    /// While what this returns lives, backward leaves gradients in each process; the first one afterwards brings them
    /// together with its own. Forward must be called inside as well.
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

    /// Runs `body`, in which ranks may make different numbers of forwards and backwards (of their own rows), each
    /// forward with one backward after it, and updates. A rank whose body has ended shadows the others' collectives,
    /// with gradients of zero, until all bodies have; then all take model and optimizers from the rank that came last.
    /// Running statistics are those of rank 0, and go on with its last batch while it waits, or with one of another
    /// rank where it had none. Gives up the promise of equal bits. Collective. Throws what `body` throws, upon which
    /// the other ranks throw CommunicationError; and InvalidArgument where a rank had no batch at all and forward takes
    /// more than tensors. torch's Join, DistributedDataParallel.join.
    template <class Body>
    void join(Body&& body, const JoinOptions& options = {}) {
        this->engine().begin_join(options);
        try {
            std::forward<Body>(body)();
            this->engine().end_join([this](std::size_t tensors) { return this->forward_of_tensors(tensors); });
        } catch (...) {
            this->engine().give_up_join();
            throw;
        }
    }

    /// From now on `hook` brings gradients together, over a duplicate of `group`: the one of the constructor. Gives up
    /// the promise of equal bits. Collective; every rank registers the same, once, and before the first forward or step
    /// (InvalidArgument).
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
