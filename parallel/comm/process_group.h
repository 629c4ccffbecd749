// Process groups: collectives and messages between the processes of a job. What torch.distributed is to PyTorch, with
// its names, order of arguments and shapes.
//
//     ls::ProcessGroup group;                    // who is who: told by lockstep-run, torchrun, mpirun, srun
//     group.all_reduce(gradient);                // in place; returns when it is done
//     auto work = group.broadcast_async(x, 0);   // goes on while the caller does other work
//     work.wait();
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/parallel/comm/reduce_op.h"
#include "lockstep/parallel/comm/rendezvous.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

class Communicator;
class OperationQueue;
class UnwindingNotice;
class WorkState;

struct ProcessGroupOptions {
    /// "shm" (shared memory on each host, gloo between hosts), "gloo", "mpi", "nccl" (collectives on tensors of GPUs,
    /// one GPU per rank; everything else as shm); empty: shm.
    std::string backend = {};
    /// How the processes find each other.
    RendezvousOptions rendezvous = {};
    /// An operation that takes longer fails; then the group is dead on every rank.
    std::chrono::milliseconds time_limit = Store::default_timeout;
};

/// A backend that this version knows.
struct ProcessGroupBackend {
    std::string name;
    bool built_in = false;
    std::string how_to_build;  ///< what to do where it is not: "install libgloo-dev and configure again"
};
std::vector<ProcessGroupBackend> process_group_backends();
/// Why a backend cannot be used on this machine ("it was not built in; ...", "there is no GPU: no CUDA driver"); empty
/// where it can. Asks the CUDA driver, where the backend needs it: do not fork after it. Throws InvalidArgument for a
/// name that is none.
std::string why_unusable(std::string_view backend);
/// Throws InvalidArgument where it cannot be used, as a group of that backend does.
void require_usable(std::string_view backend);

/// All processes of a job, or some of them. Made by every one of them, at the same time; destroyed by each when it
/// likes: what is still under way then fails, here and, with an error that says so, on the other ranks. Destroyed while
/// an exception is on its way, it ends what the others do with this rank, whether under way or still to come.
///
/// Collectives are called by all ranks in the same order, with the same shapes, dtypes and roots (LOCKSTEP_DEBUG=detail
/// compares them and names the ranks that differ). They run in the order of the calls, one after another; messages pass
/// them by. Tensors lie on the host, on virtual CPU devices, whose work so far is waited for, or on GPUs, where an
/// operation comes after what their streams were given so far, and what they are given after it sees the result
/// (`nccl` moves them between GPUs, the others through pinned memory; docs/collectives.md). They need not be
/// contiguous, and a write to them counts as any other (Tensor::version). A group of one rank has nobody to talk to:
/// its collectives copy what there is to copy.
///
/// All operations throw, with nothing sent, InvalidArgument for tensors that are undefined, traced, or followed by
/// autograd where they are written (write them inside NoGrad), for those that share memory where that cannot be, for
/// shapes and dtypes that don't fit, for a mean of booleans and for ranks that are not there; and CommunicationError
/// when the operation cannot be finished. Afterwards the group is unusable: every later operation throws.
class ProcessGroup {
public:
    /// An operation on its way. May be copied, outlive the group, and be destroyed before the operation is done. The
    /// tensors' memory is kept until then, but belongs to the operation until `wait` has returned: whoever reads or
    /// writes it earlier finds it half done.
    class Work {
    public:
        explicit Work(std::shared_ptr<WorkState> state) : state_(std::move(state)) {}
        /// True once it has succeeded or failed.
        bool done() const;
        /// Returns once the operation is done, which is soon after the group's time_limit at the latest. Throws
        /// CommunicationError when it failed, every time.
        void wait() const;
        /// As `wait`, but false when it is not done in time.
        bool wait_for(std::chrono::milliseconds time) const;
        /// Who sent what was received; -1 for everything but a receive. Waits.
        int source() const;

    private:
        WorkState& state() const;
        std::shared_ptr<WorkState> state_;
    };
    static constexpr int any_source = -1;

    /// Returns once all processes are there and connected. Throws InvalidArgument for a backend that does not exist or
    /// was not built in (saying how to build it), and what Rendezvous throws.
    explicit ProcessGroup(const ProcessGroupOptions& options = {});
    ~ProcessGroup();
    ProcessGroup(const ProcessGroup&) = delete;
    ProcessGroup& operator=(const ProcessGroup&) = delete;

    int rank() const;
    int size() const;
    /// Of this host, in the job.
    int local_rank() const { return rendezvous_->info().local_rank; }
    std::string_view backend() const;
    const std::shared_ptr<Store>& store() const { return rendezvous_->store(); }

    /// A group of these ranks of this one, which become its ranks 0, 1, ...; null on ranks that are not among them. May
    /// outlive this group. Collective over this group. Throws InvalidArgument for no ranks, for one that is not there
    /// or there twice, and, on all ranks, where the lists differ.
    std::unique_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks);
    /// The same ranks, for operations whose order is their own. Collective.
    std::unique_ptr<ProcessGroup> duplicate();
    /// Likewise, for operations on host memory without tensors. Collective.
    std::shared_ptr<Communicator> communicator(std::string_view purpose) const;

    // Collectives. The plain name returns when the operation is done on this rank, the one with _async at once.

    /// Every rank gets the reduction, in place.
    void all_reduce(const Tensor& tensor, ReduceOp op = ReduceOp::sum);
    Work all_reduce_async(const Tensor& tensor, ReduceOp op = ReduceOp::sum);
    /// `root` gets it, in place; the tensors of the others stay as they are.
    void reduce(const Tensor& tensor, int root, ReduceOp op = ReduceOp::sum);
    Work reduce_async(const Tensor& tensor, int root, ReduceOp op = ReduceOp::sum);
    /// The others get the tensor of `root`, in place.
    void broadcast(const Tensor& tensor, int root);
    Work broadcast_async(const Tensor& tensor, int root);
    /// `out`, of shape (ranks, in...) or (ranks * in[0], ...), gets the `in` of all ranks; `in` may be its own part of
    /// `out`.
    void all_gather(const Tensor& out, const Tensor& in);
    Work all_gather_async(const Tensor& out, const Tensor& in);
    /// out[r] gets the `in` of rank r, whose shape it has; ranks may have different ones.
    void all_gather(const std::vector<Tensor>& out, const Tensor& in);
    Work all_gather_async(const std::vector<Tensor>& out, const Tensor& in);
    /// out[r] of `root` gets the `in` of rank r; on the others `out` is empty. One shape.
    void gather(const Tensor& in, const std::vector<Tensor>& out, int root);
    Work gather_async(const Tensor& in, const std::vector<Tensor>& out, int root);
    /// `out` of rank r gets in[r] of `root`; on the others `in` is empty. One shape.
    void scatter(const Tensor& out, const std::vector<Tensor>& in, int root);
    Work scatter_async(const Tensor& out, const std::vector<Tensor>& in, int root);
    /// `out` of rank r gets the reduction of part r of `in`, of shape (ranks, out...) or (ranks * out[0], ...).
    void reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op = ReduceOp::sum);
    Work reduce_scatter_async(const Tensor& out, const Tensor& in, ReduceOp op = ReduceOp::sum);
    /// `out` of rank r gets the reduction of all in[r], whose shape it has; the shapes may differ between ranks.
    void reduce_scatter(const Tensor& out, const std::vector<Tensor>& in, ReduceOp op = ReduceOp::sum);
    Work reduce_scatter_async(const Tensor& out, const std::vector<Tensor>& in, ReduceOp op = ReduceOp::sum);
    /// `in` is cut along dimension 0 into equal parts; part r goes to rank r, what comes from there is part r of `out`.
    void all_to_all(const Tensor& out, const Tensor& in);
    Work all_to_all_async(const Tensor& out, const Tensor& in);
    /// The parts have `out_rows` and `in_rows` rows: one number per rank.
    void all_to_all(const Tensor& out, const Tensor& in, const std::vector<std::int64_t>& out_rows,
                    const std::vector<std::int64_t>& in_rows);
    Work all_to_all_async(const Tensor& out, const Tensor& in, const std::vector<std::int64_t>& out_rows,
                          const std::vector<std::int64_t>& in_rows);
    /// in[r] goes to rank r, what comes from there is out[r].
    void all_to_all(const std::vector<Tensor>& out, const std::vector<Tensor>& in);
    Work all_to_all_async(const std::vector<Tensor>& out, const std::vector<Tensor>& in);
    /// Returns when all ranks have called it.
    void barrier();
    Work barrier_async();
    /// As barrier; an error on rank 0 names all ranks that have not come within `time_limit`.
    void monitored_barrier(std::chrono::milliseconds time_limit);

    /// Runs `prepare` on one rank of each host while the others wait (no longer than the group's time_limit), for what
    /// must be there once (data that is unpacked, for one). Collective. What it throws is thrown on its rank, and
    /// CommunicationError that quotes it on the others.
    void once_per_host(const std::function<void()>& prepare);

    // Messages. Between two ranks those with the same tag (0 to 2^31 - 1) arrive in the order in which they were sent;
    // both sides give tensors of the same number of bytes. To send does not mean that the other side has received it.

    /// Returns when `tensor` may be written again.
    void send(const Tensor& tensor, int to, int tag = 0);
    Work isend(const Tensor& tensor, int to, int tag = 0);
    /// Returns who sent it.
    int recv(const Tensor& tensor, int from = any_source, int tag = 0);
    Work irecv(const Tensor& tensor, int from = any_source, int tag = 0);

    /// From any thread: whoever waits in this group, here or on another rank, gets a CommunicationError with `reason`,
    /// and so does every later call. torch's ProcessGroup.abort.
    void abort(const std::string& reason) noexcept;

private:
    ProcessGroup(std::shared_ptr<Rendezvous> rendezvous, std::shared_ptr<Communicator> communicator);

    std::shared_ptr<Rendezvous> rendezvous_;
    std::shared_ptr<Communicator> communicator_;
    std::unique_ptr<OperationQueue> queue_;  ///< goes before the communicator
    int subgroups_ = 0;
    std::unique_ptr<UnwindingNotice> notice_;
    const int made_in_;  ///< see forked::generation
};

}  // namespace lockstep
