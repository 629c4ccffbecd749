// Process groups: collectives and messages between the processes of a job, with the names, order of arguments and
// shapes of torch.distributed.
//
//     ls::ProcessGroup group;                    // rank and size from lockstep-run, torchrun, mpirun, srun
//     group.all_reduce(gradient);                // in place; returns when it is done
//     auto work = group.broadcast_async(x, 0);   // runs while the caller does other work
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

/// Options of a ProcessGroup.
struct ProcessGroupOptions {
    /// "shm" (shared memory on each host, gloo between hosts), "gloo", "mpi", "nccl" (collectives on tensors of GPUs,
    /// one GPU per rank; everything else as shm); empty: shm.
    std::string backend = {};
    /// Addresses and ranks of the processes.
    RendezvousOptions rendezvous = {};
    /// Time limit of an operation. If it expires, the operation fails and the group is unusable on every rank.
    std::chrono::milliseconds time_limit = Store::default_timeout;
};

/// A backend that this version supports.
struct ProcessGroupBackend {
    std::string name;
    bool present = false;
    std::string absence;  ///< reason if it is absent: "it was not built in; install libgloo-dev and configure again"
};
/// Shared builds load the libraries of all backends that the machine can use.
std::vector<ProcessGroupBackend> process_group_backends();
/// Why a backend cannot be used on this machine ("it was not built in; ...", "there is no GPU: no CUDA driver"); empty
/// if it can be used. Queries the CUDA driver if the backend needs it: do not fork afterwards. Throws InvalidArgument
/// for an unknown name.
std::string unusable_reason(std::string_view backend);
/// Throws InvalidArgument if the backend cannot be used, as the constructor of a group does.
void require_usable(std::string_view backend);

/// All processes of a job, or some of them. Constructed by all of them at the same time; each may destroy it at any
/// time. Destruction makes pending operations fail, here and, with an error that names the cause, on the other ranks.
/// If it is destroyed during stack unwinding, all current and later operations of the other ranks with this rank fail.
///
/// All ranks must call collectives in the same order, with the same shapes, dtypes and roots (LOCKSTEP_DEBUG=detail
/// compares them and names the ranks that differ). Collectives run one after another in the order of the calls;
/// messages may overtake them. Tensors may be on the host, on virtual CPU devices or on GPUs. On virtual devices, an
/// operation waits for the work enqueued so far. On GPUs, it is ordered after earlier work of the tensors' streams and
/// before later work. `nccl` moves data between GPUs, the other backends through pinned memory (docs/collectives.md).
/// Tensors need not be contiguous, and a write to them counts as any other (Tensor::version). In a group of one rank,
/// collectives only copy from input to output.
///
/// All operations throw InvalidArgument, without sending anything, for tensors that are undefined, traced, or recorded
/// by autograd and written (write them inside NoGrad). The same applies to tensors that share memory but must not,
/// invalid shapes and dtypes, a mean of booleans, and ranks outside the group. They throw CommunicationError if the
/// operation cannot be completed. Afterwards the group is unusable: every later operation throws.
class ProcessGroup {
public:
    /// An operation in flight. May be copied, outlive the group, and be destroyed before the operation is done. It
    /// keeps the tensors' memory alive until then. Until `wait` returns, the content of the tensors is undefined and
    /// they must not be written.
    class Work {
    public:
        explicit Work(std::shared_ptr<WorkState> state) : state_(std::move(state)) {}
        /// True once it has succeeded or failed.
        bool done() const;
        /// Waits until the operation is done, at the latest shortly after the group's time_limit. Throws
        /// CommunicationError if it failed, on every call.
        void wait() const;
        /// As `wait`, but returns false if the operation is not done in time.
        bool wait_for(std::chrono::milliseconds time) const;
        /// Rank that sent the received message; -1 for operations other than receive. Waits.
        int source() const;

    private:
        WorkState& state() const;
        std::shared_ptr<WorkState> state_;
    };
    static constexpr int any_source = -1;

    /// Returns when all processes have arrived and are connected. Throws InvalidArgument for a backend that does not
    /// exist or was not built in (with a hint how to build it), and the errors of Rendezvous.
    explicit ProcessGroup(const ProcessGroupOptions& options = {});
    ~ProcessGroup();
    ProcessGroup(const ProcessGroup&) = delete;
    ProcessGroup& operator=(const ProcessGroup&) = delete;

    int rank() const;
    int size() const;
    /// Rank among the processes of this host.
    int local_rank() const { return rendezvous_->info().local_rank; }
    std::string_view backend() const;
    const std::shared_ptr<Store>& store() const { return rendezvous_->store(); }

    /// A group of the given ranks of this group, which become its ranks 0, 1, ...; null on all other ranks. May outlive
    /// this group. Collective over this group. Throws InvalidArgument for an empty list, for invalid or repeated ranks,
    /// and, on all ranks, if the lists differ.
    std::unique_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks);
    /// A group of the same ranks, whose operations are ordered independently. Collective.
    std::unique_ptr<ProcessGroup> duplicate();
    /// Same as duplicate(), for operations on host memory without tensors. Collective.
    std::shared_ptr<Communicator> communicator(std::string_view purpose) const;

    // Collectives. The plain function returns when the operation is done on this rank; the _async function returns at
    // once.

    /// Every rank gets the reduction, in place.
    void all_reduce(const Tensor& tensor, ReduceOp op = ReduceOp::sum);
    Work all_reduce_async(const Tensor& tensor, ReduceOp op = ReduceOp::sum);
    /// Only `root` gets the reduction, in place; the tensors of the other ranks are unchanged.
    void reduce(const Tensor& tensor, int root, ReduceOp op = ReduceOp::sum);
    Work reduce_async(const Tensor& tensor, int root, ReduceOp op = ReduceOp::sum);
    /// The other ranks get the tensor of `root`, in place.
    void broadcast(const Tensor& tensor, int root);
    Work broadcast_async(const Tensor& tensor, int root);
    /// `out`, of shape (ranks, in...) or (ranks * in[0], ...), gets the `in` of all ranks. `in` may be this rank's part
    /// of `out`.
    void all_gather(const Tensor& out, const Tensor& in);
    Work all_gather_async(const Tensor& out, const Tensor& in);
    /// out[r] gets the `in` of rank r, and must have its shape; shapes may differ between ranks.
    void all_gather(const std::vector<Tensor>& out, const Tensor& in);
    Work all_gather_async(const std::vector<Tensor>& out, const Tensor& in);
    /// out[r] of `root` gets the `in` of rank r; on the other ranks `out` is empty. All have the same shape.
    void gather(const Tensor& in, const std::vector<Tensor>& out, int root);
    Work gather_async(const Tensor& in, const std::vector<Tensor>& out, int root);
    /// `out` of rank r gets in[r] of `root`; on the other ranks `in` is empty. All have the same shape.
    void scatter(const Tensor& out, const std::vector<Tensor>& in, int root);
    Work scatter_async(const Tensor& out, const std::vector<Tensor>& in, int root);
    /// `out` of rank r gets the reduction of part r of `in`, of shape (ranks, out...) or (ranks * out[0], ...).
    void reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op = ReduceOp::sum);
    Work reduce_scatter_async(const Tensor& out, const Tensor& in, ReduceOp op = ReduceOp::sum);
    /// `out` of rank r gets the reduction of all in[r], and must have their shape; shapes may differ between ranks.
    void reduce_scatter(const Tensor& out, const std::vector<Tensor>& in, ReduceOp op = ReduceOp::sum);
    Work reduce_scatter_async(const Tensor& out, const std::vector<Tensor>& in, ReduceOp op = ReduceOp::sum);
    /// `in` and `out` are cut along dimension 0 into equal parts: part r of `in` is sent to rank r, part r of `out`
    /// received from it.
    void all_to_all(const Tensor& out, const Tensor& in);
    Work all_to_all_async(const Tensor& out, const Tensor& in);
    /// Parts of `out_rows` and `in_rows` rows: one number per rank.
    void all_to_all(const Tensor& out, const Tensor& in, const std::vector<std::int64_t>& out_rows,
                    const std::vector<std::int64_t>& in_rows);
    Work all_to_all_async(const Tensor& out, const Tensor& in, const std::vector<std::int64_t>& out_rows,
                          const std::vector<std::int64_t>& in_rows);
    /// in[r] is sent to rank r, out[r] received from it.
    void all_to_all(const std::vector<Tensor>& out, const std::vector<Tensor>& in);
    Work all_to_all_async(const std::vector<Tensor>& out, const std::vector<Tensor>& in);
    /// Returns when all ranks have called it.
    void barrier();
    Work barrier_async();
    /// As barrier; an error on rank 0 names all ranks that have not arrived within `time_limit`.
    void monitored_barrier(std::chrono::milliseconds time_limit);

    /// Runs `prepare` on one rank of each host while the others wait (at most the group's time_limit), for example to
    /// unpack data once. Collective. An exception of `prepare` is rethrown on its rank; the other ranks throw
    /// CommunicationError that quotes it.
    void once_per_host(const std::function<void()>& prepare);

    // Messages. Between two ranks, messages with the same tag (0 to 2^31 - 1) arrive in the order in which they were
    // sent. Both sides must pass tensors of the same number of bytes. A completed send does not imply that the message
    // has been received.

    /// Returns when `tensor` may be written again.
    void send(const Tensor& tensor, int to, int tag = 0);
    Work isend(const Tensor& tensor, int to, int tag = 0);
    /// Returns the rank that sent the message.
    int recv(const Tensor& tensor, int from = any_source, int tag = 0);
    Work irecv(const Tensor& tensor, int from = any_source, int tag = 0);

    /// Makes all waiting and later calls of this group, here and on the other ranks, throw CommunicationError with
    /// `reason`. May be called from any thread. torch's ProcessGroup.abort.
    void abort(const std::string& reason) noexcept;

private:
    ProcessGroup(std::shared_ptr<Rendezvous> rendezvous, std::shared_ptr<Communicator> communicator);

    std::shared_ptr<Rendezvous> rendezvous_;
    std::shared_ptr<Communicator> communicator_;
    std::unique_ptr<OperationQueue> queue_;  ///< destroyed before the communicator
    int subgroups_ = 0;
    std::unique_ptr<UnwindingNotice> notice_;
    const int fork_generation_;  ///< see forked::generation
};

}  // namespace lockstep
