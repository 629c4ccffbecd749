// Interface of a backend: how the ranks of a group move bytes between each other. One implementation per backend (shm/,
// gloo/, mpi/, nccl/); code above this file is independent of the backend. ProcessGroup is its public form, which
// checks arguments, counts operations and turns errors into messages.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/parallel/comm/reduce_op.h"
#include "lockstep/parallel/comm/store.h"
#include "lockstep/parallel/comm/store/deadline.h"
#include "lockstep/runtime/device.h"
#include "lockstep/runtime/dtype.h"

namespace lockstep {

class Stream;

/// A call that cannot be completed: the deadline has passed, a peer has left, or a message has the wrong length. One
/// line without rank, operation and sequence number, which the caller adds. Afterwards every call of the transport
/// throws.
class TransportError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// A message in flight. Destroying the object cancels it.
class Message {
public:
    virtual ~Message() = default;
    /// Makes progress without waiting; true when it is complete. Throws TransportError.
    virtual bool advance() = 0;
    /// Rank that sent the received message; valid when it is done.
    virtual int source() const = 0;
};

/// Moves bytes in the memory of `device()`; if that is a GPU, messages and barriers still use host memory. Collectives
/// block the calling thread (or are enqueued on a stream, see TransportBackend::make_on). They must be called in the
/// same order on all ranks, with the same sizes, from one thread at a time. While they wait they call `meanwhile`, so
/// that messages make progress. A rank's own part is copied. Sizes may be 0. Throws TransportError.
class Transport {
public:
    static constexpr int any_source = -1, all_left = -2;

    virtual ~Transport() = default;  ///< never blocks for long: peers that still wait are notified, or find out
    virtual std::string_view backend() const = 0;
    virtual Device device() const { return Device::host(); }
    /// Whether messages and collectives that only move data accept memory of GPUs, whatever memory the other ranks
    /// pass.
    virtual bool takes_gpu_memory() const { return false; }
    /// Whether its calls may call CUDA, whatever memory they are given. If so, no call is made in a host function of a
    /// stream, and no host function waits for a thread that makes one.
    virtual bool may_call_cuda() const { return false; }
    /// The transport between the same ranks for host memory.
    virtual Transport& on_host() { return *this; }

    /// Messages between two ranks with the same tag are received in the order in which they were sent. `bytes` of both
    /// sides must agree. The memory must stay until the message is done.
    virtual std::unique_ptr<Message> send(const void* data, std::size_t bytes, int to, std::uint32_t tag) = 0;
    virtual std::unique_ptr<Message> receive(void* data, std::size_t bytes, int from, std::uint32_t tag) = 0;
    /// Rank of the first arrived message with this tag that no receive has claimed; `receive` from that rank gets it.
    /// Returns any_source if no such message has arrived yet, and all_left if in addition all other ranks have left.
    virtual int announced(std::uint32_t tag) = 0;

    virtual void barrier(Deadline deadline) = 0;
    virtual void broadcast(void* data, std::size_t bytes, int root, Deadline deadline) = 0;
    /// `bytes`: one number per rank. Part r of `out` follows parts 0 to r - 1; `in` may be this rank's part of `out`.
    virtual void all_gather(const void* in, void* out, std::span<const std::size_t> bytes, Deadline deadline) = 0;
    /// As all_gather; only `root` has an `out`.
    virtual void gather(const void* in, void* out, std::span<const std::size_t> bytes, int root, Deadline deadline) = 0;
    /// Part r of the root's `in` is sent to rank r; only `root` has an `in`.
    virtual void scatter(const void* in, void* out, std::span<const std::size_t> bytes, int root,
                         Deadline deadline) = 0;
    /// Part r of `in` (of sent[r] bytes) is sent to rank r; the bytes from rank r (received[r]) become part r of `out`.
    /// `in` and `out` must not overlap.
    virtual void all_to_all(const void* in, std::span<const std::size_t> sent, void* out,
                            std::span<const std::size_t> received, Deadline deadline) = 0;
    /// In place. `op`: sum, min, max or product, computed by reduce_elements; in an order chosen by the backend, but
    /// with the same result on all ranks. On a GPU in the backend's own arithmetic, and mean as well.
    virtual void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op, Deadline deadline) = 0;
    /// In place on `root`; the data of other ranks is unchanged.
    virtual void reduce(void* data, std::size_t count, DType dtype, ReduceOp op, int root, Deadline deadline) = 0;
    /// `counts`: elements, one number per rank, parts of `in` as in scatter; `out` gets the result of this rank's part.
    virtual void reduce_scatter(const void* in, void* out, std::span<const std::size_t> counts, DType dtype,
                                ReduceOp op, Deadline deadline) = 0;

    /// From any thread: calls that wait now and all later ones throw TransportError with `reason`, on the other ranks
    /// as well, as far as the backend can tell them.
    virtual void abort(const std::string& reason) noexcept = 0;
    /// The failure of the transport known to this rank so far; empty: none. From any thread, does not wait.
    virtual std::string failure() const { return {}; }

    /// Called repeatedly while a collective waits; set by the owner, may be empty.
    std::function<void()> meanwhile;
    /// How long the destructor waits until the others have read the sent data.
    std::chrono::milliseconds patience{1000};
};

/// Members of a group. `store` is reserved for the group (a PrefixStore) and outlives the transport.
struct GroupInfo {
    int rank = 0, size = 1;
    std::shared_ptr<Store> store;
    std::chrono::milliseconds timeout{};  ///< for operations and setup
    /// Ranks of the parent's job in order of this group's ranks (0, 1, ... for the whole job): what backends that know
    /// the job by themselves (mpi) need.
    std::vector<int> global_ranks = {};
    /// Host of the job's rank 0, empty if unknown: a backend selects this host's address that is routed to it.
    std::string master_addr = {};
    /// The host of each rank, numbered from 0 in order of ranks; empty: all are on one.
    std::vector<int> hosts = {};
    /// Names of the ranks in messages, if different from their numbers.
    std::vector<int> names = {};
    /// Reason why a rank, by its name in messages, cannot arrive any more ("rank 3 has died"); empty if unknown. May be
    /// null.
    std::function<std::string(int called)> gone = {};
    /// While the transport is made: why it cannot be completed ("rank 3 has died"); empty if unknown. From any thread;
    /// may be null.
    std::function<std::string()> lost = {};
    /// At the deadline of the current operation: the rank to blame ("rank 3 has not arrived"), from the reports of all
    /// ranks of the job; empty if unknown. May be null.
    std::function<std::string()> verdict = {};
    int called(int peer) const { return names.empty() ? peer : names[static_cast<std::size_t>(peer)]; }
};

/// A backend by its name.
struct TransportBackend {
    std::string_view name;
    /// Collective over the ranks of `info`, size 2 or more. Null if the backend is absent.
    std::unique_ptr<Transport> (*make)(const GroupInfo& info) = nullptr;
    /// Reason why it is absent: "it was not built in; install libgloo-dev and configure again".
    std::string absence = {};
    /// Reason why it cannot be used on this machine; empty if it can. Null: always usable.
    std::string (*unusable)() = nullptr;
    /// Creates a transport for memory of a GPU, in addition to the one that `make` has made for the same ranks.
    /// Collectives are enqueued on `stream`, of `device`, in the order of the calls, and `failure` reports whether
    /// their results are valid; without a stream they are done on return. Null for backends that only support host
    /// memory.
    std::unique_ptr<Transport> (*make_on)(const GroupInfo& info, Device device, Stream* stream,
                                          std::shared_ptr<Transport> host) = nullptr;
};

/// All known names.
inline constexpr std::array<std::string_view, 4> transport_backend_names{"shm", "gloo", "nccl", "mpi"};
/// The backend of this name; shm uses gloo between hosts. Loads no other backend. Throws InvalidArgument for an unknown
/// name.
const TransportBackend& transport_backend(std::string_view name);

const TransportBackend& shm_backend();  ///< for one host only
const TransportBackend& hosts_backend();
const TransportBackend& gloo_backend();
const TransportBackend& nccl_backend();
const TransportBackend& mpi_backend();
/// Reason why nccl is unusable: no device of CUDA is visible. Empty if one is.
std::string no_gpu_reason();

}  // namespace lockstep
