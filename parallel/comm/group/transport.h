// What a backend must offer: how the ranks of a group move bytes between each other. One implementation a backend
// (shm/, gloo/, mpi/, nccl/); nothing above this file knows which one it talks to. What a user sees of it is
// ProcessGroup, which checks arguments, counts operations and turns errors into messages.
#pragma once

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

/// A call that cannot be finished: the deadline has passed, a peer has gone, a message has the wrong length. One line
/// without rank, operation and sequence number, which the caller knows. After it the transport is dead: every later
/// call throws.
class TransportError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// A message on its way. Destroying it gives it up.
class Message {
public:
    virtual ~Message() = default;
    /// Moves it on without waiting; true once it is done. Throws TransportError.
    virtual bool advance() = 0;
    /// Who sent what was received; valid once it is done.
    virtual int source() const = 0;
};

/// Moves bytes of the memory of `device()`; messages and barriers, where that is a GPU, those of the host. Collectives
/// block the calling thread (or are enqueued on a stream, see TransportBackend::make_on) and are made in the same order
/// on all ranks, with the same sizes, from one thread at a time; while they wait they call `meanwhile`, so that
/// messages go on. Whatever is given for a rank's own part is copied. Sizes may be 0. Throws TransportError.
class Transport {
public:
    static constexpr int any_source = -1, nobody = -2;

    virtual ~Transport() = default;  ///< never blocks for long: peers that still wait are told, or find out
    virtual std::string_view backend() const = 0;
    virtual Device device() const { return Device::host(); }
    /// Whether messages and collectives that only move data may be given memory of GPUs, too, whatever memory the other
    /// ranks give.
    virtual bool takes_gpu_memory() const { return false; }
    /// Whether its calls may call CUDA, whatever memory they are given: then none is made in a host function of a
    /// stream, nor does one wait for a thread that makes it.
    virtual bool may_call_cuda() const { return false; }
    /// Between the same ranks, for host memory.
    virtual Transport& on_host() { return *this; }

    /// Messages between two ranks with the same tag are received in the order in which they were sent. `bytes` of both
    /// sides must agree. The memory must stay until the message is done.
    virtual std::unique_ptr<Message> send(const void* data, std::size_t bytes, int to, std::uint32_t tag) = 0;
    virtual std::unique_ptr<Message> receive(void* data, std::size_t bytes, int from, std::uint32_t tag) = 0;
    /// Who has sent the first message with this tag that has come and was not asked for: `receive` from that rank takes
    /// it. any_source: there is none so far; nobody: there is none, and all other ranks are known to have gone.
    virtual int announced(std::uint32_t tag) = 0;

    virtual void barrier(Deadline deadline) = 0;
    virtual void broadcast(void* data, std::size_t bytes, int root, Deadline deadline) = 0;
    /// `bytes`: one number per rank. Part r of `out` lies after parts 0 to r - 1; `in` may be the own part of `out`.
    virtual void all_gather(const void* in, void* out, std::span<const std::size_t> bytes, Deadline deadline) = 0;
    /// As all_gather; only `root` has an `out`.
    virtual void gather(const void* in, void* out, std::span<const std::size_t> bytes, int root, Deadline deadline) = 0;
    /// Part r of the root's `in` goes to rank r; only `root` has an `in`.
    virtual void scatter(const void* in, void* out, std::span<const std::size_t> bytes, int root,
                         Deadline deadline) = 0;
    /// Part r of `in` (of sent[r] bytes) goes to rank r; what rank r sends to this one (received[r] bytes) becomes part
    /// r of `out`. `in` and `out` don't overlap.
    virtual void all_to_all(const void* in, std::span<const std::size_t> sent, void* out,
                            std::span<const std::size_t> received, Deadline deadline) = 0;
    /// In place. `op`: sum, min, max or product, computed by reduce_elements; in an order of the backend's choosing,
    /// but with the same result on all ranks. On a GPU in the backend's own arithmetic, and mean as well.
    virtual void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op, Deadline deadline) = 0;
    /// In place on `root`; what others gave is left as it was.
    virtual void reduce(void* data, std::size_t count, DType dtype, ReduceOp op, int root, Deadline deadline) = 0;
    /// `counts`: elements, one number per rank, parts of `in` as in scatter; the own part's result goes to `out`.
    virtual void reduce_scatter(const void* in, void* out, std::span<const std::size_t> counts, DType dtype,
                                ReduceOp op, Deadline deadline) = 0;

    /// From any thread: calls that wait now and all later ones throw TransportError with `reason`, on the other ranks
    /// as well, as far as the backend can tell them.
    virtual void abort(const std::string& reason) noexcept = 0;
    /// From any thread, without waiting: why there is no going on, as far as this rank knows by now; empty if there is.
    virtual std::string failure() const { return {}; }

    /// Called over and over while a collective waits; set by the owner, may be empty.
    std::function<void()> meanwhile;
    /// How long its end waits until the others have read what was sent.
    std::chrono::milliseconds patience{1000};
};

/// Who makes up a group. `store` is the group's own (a PrefixStore) and outlives the transport.
struct GroupInfo {
    int rank = 0, size = 1;
    std::shared_ptr<Store> store;
    std::chrono::milliseconds timeout{};  ///< of operations, and for setting up
    /// Ranks of the parent's job in order of this group's ranks (0, 1, ... for the whole job): what backends that know
    /// the job by themselves (mpi) need.
    std::vector<int> global_ranks = {};
    /// Host of the job's rank 0, empty when nobody said it: towards it a backend finds this host's own address.
    std::string master_addr = {};
    /// The host of each rank, numbered from 0 in order of ranks; empty: all are on one.
    std::vector<int> hosts = {};
    /// What the ranks are called in messages, where that is not their own number.
    std::vector<int> names = {};
    /// Why a rank, as it is called, will not come any more ("rank 3 has died"); empty where nothing is known. May be
    /// missing.
    std::function<std::string(int called)> gone = {};
    /// At the deadline of the operation under way: who is to blame ("rank 3 has not arrived"), from what all ranks of
    /// the job have said of themselves; empty where nobody knows. May be missing.
    std::function<std::string()> verdict = {};
    int called(int peer) const { return names.empty() ? peer : names[static_cast<std::size_t>(peer)]; }
};

/// A backend that this build knows by name.
struct TransportBackend {
    std::string_view name;
    /// Collective over the ranks of `info`, size 2 or more. Null where its library was not there when this was built.
    std::unique_ptr<Transport> (*make)(const GroupInfo& info) = nullptr;
    std::string_view how_to_build;  ///< "install libgloo-dev and configure again"
    /// Why it cannot be used on this machine; empty where it can. Null: it can everywhere.
    std::string (*unusable)() = nullptr;
    /// For memory of a GPU, beside a transport that `make` has made for the same ranks. Collectives are enqueued on
    /// `stream`, of `device`, in the order of the calls, and `failure` tells whether they can still be trusted; where
    /// it is null they are done when they return. Null for backends that know host memory alone.
    std::unique_ptr<Transport> (*make_on)(const GroupInfo& info, Device device, Stream* stream,
                                          std::shared_ptr<Transport> host) = nullptr;
};

/// shm, gloo, nccl, mpi: in this order, all of them named. The shm backend among them takes gloo between hosts.
std::span<const TransportBackend> transport_backends();

TransportBackend shm_backend();  ///< for one host alone
TransportBackend hosts_backend();
TransportBackend gloo_backend();
TransportBackend nccl_backend();
TransportBackend mpi_backend();

}  // namespace lockstep
