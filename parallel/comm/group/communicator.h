// The ranks of a group and their counted operations: a transport, with errors that name the operation, its number and
// the missing ranks. Blocking, on host memory, unless it was constructed for a GPU. ProcessGroup and the engine are
// built on it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/parallel/comm/group/transport.h"
#include "lockstep/parallel/comm/reduce_op.h"
#include "lockstep/parallel/comm/store/rank_exits.h"

namespace lockstep {

class RankProgress;
struct CollectiveCall;

/// Collectives must be called by one thread at a time, in the same order on all ranks. Every call ends by its deadline
/// (its start plus the timeout), and throws CommunicationError if it cannot be completed; the communicator is unusable
/// afterwards. A group of one rank needs no transport. With LOCKSTEP_DEBUG=detail the ranks first compare their calls
/// and throw if they differ.
class Communicator {
public:
    struct Info {
        std::string name;  ///< name of the group, unique in the job: "world"
        int rank = 0, size = 1;
        std::shared_ptr<Store> store;  ///< store of the job; may be null if size is 1
        std::chrono::milliseconds timeout = Store::default_timeout;
        std::vector<int> global_ranks;  ///< ranks of this group in the job, in order
        std::string master_addr;        ///< address of the job's rank 0; may be empty
        std::vector<int> hosts;         ///< see GroupInfo; empty: detected
        std::shared_ptr<JobFailure> failure = std::make_shared<JobFailure>();  ///< failure state of the job
    };
    /// Collective: connects the ranks of the group. Throws InvalidArgument for a backend that is not built in (with a
    /// hint how to build it), and CommunicationError.
    Communicator(const Info& info, std::string_view backend);
    ~Communicator();
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    const Info& info() const { return info_; }
    int rank() const { return info_.rank; }
    int size() const { return info_.size; }
    std::string_view backend() const { return backend_; }
    /// Collectives begun so far.
    std::uint64_t sequence() const { return sequence_; }
    /// Creates a group of the same ranks and kind for separate operations. Collective.
    std::unique_ptr<Communicator> duplicate(std::string_view purpose) const;
    /// A communicator of the same ranks for memory of this rank's GPU: see TransportBackend::make_on. Null if the
    /// backend only supports host memory, and for one rank. One thread at a time may call both. Collective.
    std::shared_ptr<Communicator> on(Device gpu, Stream* stream) const;
    bool has_gpu_memory() const { return backend_makes_on_ && transport_ != nullptr; }
    /// See Transport.
    bool takes_gpu_memory() const { return transport_ != nullptr && transport_->takes_gpu_memory(); }
    bool may_call_cuda() const { return transport_ != nullptr && transport_->may_call_cuda(); }
    /// Throws CommunicationError if something that was enqueued has failed.
    void check();

    // As in Transport, with checks of roots and sizes (InvalidArgument). `elements`: the data that is moved, for
    // comparison.
    using Elements = std::optional<DType>;
    void barrier();
    void broadcast(void* data, std::size_t bytes, int root, Elements elements = {});
    void all_gather(const void* in, void* out, std::span<const std::size_t> bytes, Elements elements = {});
    void gather(const void* in, void* out, std::span<const std::size_t> bytes, int root, Elements elements = {});
    void scatter(const void* in, void* out, std::span<const std::size_t> bytes, int root, Elements elements = {});
    void all_to_all(const void* in, std::span<const std::size_t> sent, void* out, std::span<const std::size_t> received,
                    Elements elements = {});
    /// `op` may also be mean.
    void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op);
    void reduce(void* data, std::size_t count, DType dtype, ReduceOp op, int root);
    void reduce_scatter(const void* in, void* out, std::span<const std::size_t> counts, DType dtype, ReduceOp op);
    /// As barrier; if ranks are missing, rank 0 names all of them, not only the first found.
    void monitored_barrier(std::chrono::milliseconds timeout);

    std::unique_ptr<Message> send(const void* data, std::size_t bytes, int to, std::uint32_t tag);
    std::unique_ptr<Message> receive(void* data, std::size_t bytes, int from, std::uint32_t tag);
    /// Makes progress on a message; true when it is complete. `what` names it in errors: "receive from rank 2".
    bool advance(Message& message, std::string_view what, std::size_t bytes);
    /// While an object exists, a thread waits for a message, and other ranks do not consider this one missing.
    class Waiting {
    public:
        explicit Waiting(const Communicator& communicator);
        ~Waiting();
        Waiting(const Waiting&) = delete;
        Waiting& operator=(const Waiting&) = delete;

    private:
        const Communicator& communicator_;
    };
    /// Ends the group after a fatal error and throws CommunicationError. `what`: the current operation.
    [[noreturn]] void give_up(std::string_view what, std::size_t bytes, const std::string& reason);
    /// Called repeatedly while a collective waits, so that messages make progress.
    void set_meanwhile(std::function<void()> function) {
        if (transport_) transport_->meanwhile = std::move(function);
    }

    /// Makes all waiting calls of this group, here or on another rank, throw CommunicationError with `reason`. From any
    /// thread.
    void abort(const std::string& reason) noexcept;

private:
    using MakeTransport = std::function<std::shared_ptr<Transport>(const GroupInfo&)>;
    Communicator(const Info& info, std::string backend, const MakeTransport& make);
    void connect(const std::string& prefix, const MakeTransport& make);
    bool on_gpu() const { return transport_ && !transport_->device().is_host(); }
    /// Whether `op` is a mean, which the transport computes as a sum. Throws InvalidArgument for booleans.
    bool divides(ReduceOp op, DType dtype) const;

    template <class Body>
    void perform(CollectiveCall call, Body&& body);
    [[noreturn]] void fail(std::string_view name, std::uint64_t number, std::uint64_t bytes, const std::string& reason);
    void require_root(std::string_view name, int root) const;
    void require_peer(std::string_view name, int peer) const;
    void require_parts(std::string_view name, std::size_t parts) const;

    Info info_;
    std::string backend_;
    bool compares_ = false, failed_ = false, backend_makes_on_ = false;
    std::shared_ptr<Transport> transport_;         ///< null if size is 1
    std::unique_ptr<RankProgress> rank_progress_;  ///< null if size is 1
    std::atomic<std::uint64_t> sequence_{0};
    mutable std::atomic<int> duplicates_{0};
};

}  // namespace lockstep
